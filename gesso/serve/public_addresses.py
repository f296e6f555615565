"""Which IP addresses belong to the public internet, by the special-purpose registries of IANA.

The tables of Python's `ipaddress` depend on its patch version: 3.11.7 takes 192.0.0.0/24, 192.88.99.0/24 and 3fff::/20
for public. So the ranges are listed here, as of October 2025:
https://www.iana.org/assignments/iana-ipv4-special-registry and https://www.iana.org/assignments/iana-ipv6-special-registry.

Whole registered ranges are refused, even where the registry has globally reachable addresses inside, such as anycast
relays of protocols: no picture is served from them.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NOT_PUBLIC_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private use
            "100.64.0.0/10",  # shared address space of carriers
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "172.16.0.0/12",  # private use
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # automatic multicast tunneling
            "192.88.99.0/24",  # 6to4 relays, deprecated
            "192.168.0.0/16",  # private use
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
            "168.63.129.16/32",  # not registered: Azure's platform, for every virtual machine
        ),
    )
)
UNICAST = ipaddress.IPv6Network("2000::/3")  # all that is public is in here, apart from NAT64
NOT_PUBLIC_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID, drone identifiers
            "2001:db8::/32",  # documentation
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 addresses for machines with IPv6 only (RFC 6052)
SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")  # IPv4 addresses in bits 16 to 47 (RFC 3056)


def is_public(address: Address) -> bool:
    """Return whether an address belongs to the public internet, and not to this machine or its network.

    An IPv6 address that contains an IPv4 address is public if that is. Mapped and compatible ones (`::ffff:0:0/96`,
    `::/96`) are outside UNICAST, and Teredo is among the protocol assignments.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_V4)
    if address in NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    if address in SIX_TO_FOUR:
        return is_public(ipaddress.IPv4Address(int(address) >> 80 & 0xFFFF_FFFF))
    return address in UNICAST and not any(address in network for network in NOT_PUBLIC_V6)
