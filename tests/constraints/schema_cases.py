"""Schemas that use each keyword, with valid values that must match."""

from typing import Any

SOME = {name: {"type": "null"} for name in "abcdef"}
MANY = {f"k{i}": {"const": i} for i in range(150)}

CASES: dict[str, tuple[Any, list[Any]]] = {
    "anything": ({}, [None, [1, {"a": "é"}], {"x": {"y": [[]]}}]),
    "true": (True, [None, 1e5, -0.0, 1e16, 1e-7]),
    "object": ({"type": "object"}, [{}, {"a": 1, "b": [2]}]),
    "array": ({"type": "array", "minItems": 1}, [[1], [None, "x"]]),
    "no type": ({"properties": {"a": {"minLength": 2}}, "required": ["b"]}, [{"a": "xy", "b": 1}, {"b": None}]),
    "map": (
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
        [{"a": 1}, {"a": 1, "b": 2}],
    ),
    "optional": ({"type": "object", "properties": SOME}, [{}, {"b": None, "f": None}]),
    "optional, some": ({"properties": SOME, "minProperties": 1}, [{"f": None}]),
    "two to three of six": (
        {"properties": SOME, "minProperties": 2, "maxProperties": 3},
        [{"a": None, "f": None}, {"b": None, "c": None, "d": None}],
    ),
    "many optional": ({"properties": MANY}, [{}, {"k0": 0, "k149": 149}, {"k64": 64}]),
    "many required": ({"properties": MANY, "required": ["k3", "k149"]}, [{"k3": 3, "k149": 149}]),
    "prefix": (
        {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 3, "maxItems": 4},
        [[None, True, 1]],
    ),
    "exactly one": ({"type": ["integer", "null"], "minimum": 7, "maximum": 7}, [7, None]),
    "half open": ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [1, 0.5, 1e-07, 1.0]),
    "within": ({"type": "number", "minimum": 0.125, "exclusiveMaximum": 0.75}, [0.125, 0.7]),
    "negative": ({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": -1}, [-2, -1.5]),
    "large": ({"type": "number", "minimum": 10**20, "maximum": 1e23}, [10**21]),
    "unbounded": ({"type": "number", "minimum": 0}, [0, 1e16, 1e-9, 12.5]),
    "multiples": ({"type": "integer", "multipleOf": 7, "minimum": -20, "exclusiveMaximum": 49}, [-14, 0, 42]),
    "multiples without bounds": ({"type": "integer", "multipleOf": 9973}, [0, -9973, 9973 * 123456]),
    "multiples above": ({"type": "integer", "multipleOf": 12, "minimum": 1}, [12, 144, 12000]),
    "halves": ({"type": "number", "multipleOf": 0.5}, [0.5, 1, 7.0, -3.5]),
    "two multiples": ({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, [12, 0, -24]),
    "whole": ({"type": "number", "multipleOf": 1, "minimum": 3}, [3, 1000]),
    "values kept": (
        {"enum": [1, 2.5, "a", "abc", None, True, [1], 9], "type": ["number", "string"], "maximum": 3},
        [1, 2.5, "abc"],
    ),
    "enum with pattern": ({"enum": ["a", "b1", "c2", 5], "pattern": "[0-9]"}, ["b1", "c2", 5]),
    "enum of objects": ({"enum": [{"a": 1}, {"b": [1, "é"]}], "required": ["b"]}, [{"b": [1, "é"]}]),
    "one value twice": ({"enum": [1, 1.0, True], "const": 1}, [1]),
    "joined": ({"allOf": [{"minimum": 3}, {"maximum": 9, "type": "number"}, {"type": ["integer", "string"]}]}, [3, 9]),
    "joined objects": (
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 5}, "b": {}}, "additionalProperties": False},
            ]
        },
        [{"a": 5, "b": None}],
    ),
    "joined tuples": (
        {"allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"minimum": 3}}], "type": "array"},
        [[3], [5, 4.5]],
    ),
    "any of": (
        {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
    ),
    "types apart": (
        {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"type": "null"}}]},
        [1, "x", [None]],
    ),
    "numbers apart": ({"type": "integer", "oneOf": [{"maximum": 3}, {"minimum": 4, "maximum": 10}]}, [3, 10, -5]),
    "one required": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
    ),
    "overlapping numbers": ({"type": "integer", "oneOf": [{"minimum": 0}, {"maximum": 10}]}, [-1, 11]),
    "tagged": (
        {
            "oneOf": [
                {"properties": {"k": {"const": i}, "v": {"type": t}}, "required": ["k", "v"]}
                for i, t in enumerate(["null", "string"])
            ]
        },
        [{"k": 0, "v": None}, {"k": 1, "v": "x"}],
    ),
    "in itself": (
        {"type": "object", "properties": {"in": {"$ref": "#"}, "at": {"items": {"$ref": "#"}}}},
        [{"in": {"in": {"at": [{}]}}}],
    ),
    "in pairs": (
        {
            "$defs": {
                "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
                "b": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]},
            },
            "$ref": "#/$defs/a",
        },
        [[None, [None, [[]]]]],
    ),
    "annotated": (
        {"title": "t", "description": "d", "default": 1, "examples": [2], "$comment": "c", "type": "null", "x-y": 1},
        [None],
    ),
    "draft 4": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://x.org/r",
            "type": "object",
            "definitions": {"p": {"type": "number", "minimum": 0, "exclusiveMinimum": True}},
            "properties": {
                "a": {"$ref": "#/definitions/p", "minimum": 100},
                "b": {"type": "array", "items": [{"type": "null"}], "additionalItems": False},
            },
            "required": ["a"],
            "dependencies": {"b": ["c"]},
        },
        [{"a": 0.5}, {"a": 3, "b": [None], "c": 1}],
    ),
    "draft 4 inside": (
        {
            "properties": {"a": {"$schema": "http://json-schema.org/draft-04/schema", "type": "integer"}},
            "required": ["a"],
        },
        [{"a": 1}, {"a": -70}],
    ),
    "draft 7 ref siblings": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"s": {"type": "string"}},
            "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1}},
        },
        [{"a": "long"}],
    ),
    "ref siblings": (
        {"$defs": {"s": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/s", "maxLength": 1}}},
        [{"a": "x"}],
    ),
    "ids": (
        {
            "$id": "http://x.org/root.json",
            "$defs": {
                "n": {
                    "$id": "n.json",
                    "$defs": {"m": {"$anchor": "here", "type": "null"}},
                    "items": {"$ref": "#here"},
                    "type": "array",
                }
            },
            "properties": {
                "a": {"$ref": "n.json"},
                "b": {"$ref": "n.json#/$defs/m"},
                "c": {"$ref": "http://x.org/n.json#here"},
            },
        },
        [{"a": [None], "b": None, "c": None}],
    ),
    "pointers": (
        {
            "$defs": {"a/b": {"type": "null"}, "c~d%": {"type": "boolean"}},
            "prefixItems": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d%25"}],
            "type": "array",
        },
        [[None, True]],
    ),
    "dynamic": (
        {
            "$dynamicAnchor": "node",
            "type": "object",
            "properties": {"c": {"type": "array", "items": {"$dynamicRef": "#node"}}},
        },
        [{"c": [{"c": []}]}],
    ),
    "pattern properties": (
        {
            "type": "object",
            "properties": {"n1": {"minimum": 5}},
            "patternProperties": {"^n": {"type": "integer"}, "1$": {"maximum": 9}},
            "additionalProperties": {"type": "string"},
        },
        [{"n1": 7}, {"n2": 100}, {"n3": 1, "x": "y", "a1": 3}, {"né": 5}],
    ),
    "pattern properties, closed": (
        {"type": "object", "patternProperties": {"^[a-z]+$": {"type": "null"}}, "additionalProperties": False},
        [{"abc": None}, {}],
    ),
    "names": (
        {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z]{2,}$", "maxLength": 4},
            "additionalProperties": {"type": "null"},
        },
        [{"abcd": None}],
    ),
    "names of an enum": ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}, {"b": 1, "a": 2}]),
    "free keys counted": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}, "maxProperties": 2},
        [{"a": 1, "z": None}, {"x": None, "y": None}],
    ),
    "dependent required": (
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"a": ["b"]}},
        [{"a": 1, "b": 2}, {"b": 1}, {"c": 1}],
    ),
    "dependent schemas": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}},
        },
        [{"a": 1, "b": None}, {"b": 1}],
    ),
    "condition": (
        {
            "type": "object",
            "properties": {"k": {"enum": ["x", "y"]}, "v": {}},
            "required": ["k"],
            "if": {"properties": {"k": {"const": "x"}}},
            "then": {"properties": {"v": {"type": "null"}}, "required": ["v"]},
            "else": {"properties": {"v": {"type": "integer"}}},
        },
        [{"k": "x", "v": None}, {"k": "y", "v": 3}, {"k": "y"}],
    ),
    "conditions": (
        {
            "type": "object",
            "properties": {"k": {"enum": list("abcdefgh")}, "v": {}},
            "required": ["k"],
            "allOf": [
                {
                    "if": {"properties": {"k": {"const": c}}, "required": ["k"]},
                    "then": {"properties": {"v": {"const": i}}, "required": ["v"]},
                }
                for i, c in enumerate("abcdefgh")
            ],
        },
        [{"k": "a", "v": 0}, {"k": "h", "v": 7}],
    ),
    "not a type": ({"not": {"type": ["object", "array", "string"]}}, [1, None, True, 0.5]),
    "not an integer": ({"type": "number", "not": {"type": "integer"}}, [0.5, -1.25]),
    "not values": (
        {"type": ["string", "integer", "boolean"], "not": {"enum": ["a", "b", 5, True]}},
        ["c", "ab", 6, 55, False],
    ),
    "not required": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}},
        [{"a": 1}, {"b": 1}, {}],
    ),
    "not a pattern": ({"type": "string", "not": {"pattern": "^ab*$"}}, ["b", "aba", ""]),
    "not in a property": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "not": {"properties": {"a": {"minimum": 5}}},
        },
        [{"a": 4}],
    ),
    "contains": ({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}}, [[5], [1, 7, 2], [9, 9]]),
    "contains, counted": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 1, "maxContains": 2},
        [[5], [1, 7, 2, 8], [9, 1]],
    ),
    "contains, short": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}, "minItems": 2, "maxItems": 4},
        [[5, 1], [1, 2, 3, 5], [1, 5]],
    ),
    "contains, long": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}, "minItems": 3},
        [[5, 1, 2], [1, 2, 3, 5], [1, 2, 5], [5, 5, 5, 5, 5]],
    ),
    "unique": ({"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", 3]}}, [[], [3, "a"], ["b", "a", 3]]),
    "unique, six": (
        {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3, 4, 5, 6]}, "minItems": 2, "maxItems": 3},
        [[6, 1], [2, 5, 4]],
    ),
    "unique booleans": (
        {"type": "array", "uniqueItems": True, "items": {"type": ["boolean", "null"]}},
        [[True, None, False]],
    ),
    "strings": ({"type": "string"}, ["", "é🙂", 'a"b\\c\n\t\x01/', "\x7f", "\u2028"]),
    "counted strings": ({"type": "string", "minLength": 2, "maxLength": 3}, ["🙂é", '\n"', "abc"]),
    "long strings": ({"type": "string", "maxLength": 65535}, ["x" * 300]),
    "pattern and length": (
        {"type": "string", "pattern": "^[a-z]+[0-9]*$", "minLength": 2, "maxLength": 5},
        ["ab", "a1234"],
    ),
    "two patterns": ({"type": "string", "allOf": [{"pattern": "^[a-z]+$"}, {"pattern": "x"}]}, ["x", "axb"]),
    "format and pattern": ({"type": "string", "format": "date", "pattern": "^2024", "maxLength": 12}, ["2024-02-29"]),
    "unknown format": ({"type": "string", "format": "nonsense"}, ["x"]),
    "unevaluated": (
        {
            "type": "object",
            "allOf": [{"properties": {"a": {}}}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
        },
        [{"b": 1, "a": 2}],
    ),
    "unevaluated items": (
        {"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": False},
        [[None], []],
    ),
    "nullable": ({"type": "string", "nullable": True, "maxLength": 2}, ["ab", None]),
    "recursive ref": (
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "type": "object",
            "properties": {"n": {"$recursiveRef": "#"}},
        },
        [{"n": {"n": {}}}],
    ),
    "names in unicode": (
        {
            "type": "object",
            "properties": {"größe": {"type": "null"}, "🙂": {}, 'q"': {}},
            "required": ["größe"],
            "additionalProperties": {"type": "null"},
        },
        [{"größe": None, "🙂": 1, 'q"': 2, "ö": None}],
    ),
}
