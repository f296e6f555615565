def write_bundle(*a):
    raise NotImplementedError
