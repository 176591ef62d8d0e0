"""Record batches as they lie on the wire: fetched, routed by compiled kernels, and produced."""
