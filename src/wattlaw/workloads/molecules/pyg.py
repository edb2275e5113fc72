"""The one place that imports PyTorch Geometric, and says what of its extensions is there."""

from wattlaw.errors import NotAvailable, one_line

try:
    import torch_geometric.typing as extensions
    from torch_geometric.nn import radius_graph
    from torch_geometric.nn.models import dimenet, schnet
except ImportError as error:
    raise NotAvailable(
        f"torch_geometric cannot be imported ({one_line(error)}); "
        'try: pip install "wattlaw[molecules]"'
    ) from error

__all__ = ["HAS_RADIUS_GRAPH", "HAS_TRIPLETS", "dimenet", "radius_graph", "schnet"]

#: ``radius_graph`` is compiled: in pyg-lib, with releases before 2.8 in torch-cluster.
HAS_RADIUS_GRAPH: bool = getattr(extensions, "WITH_RADIUS", False) or getattr(
    extensions, "WITH_TORCH_CLUSTER", False
)
#: ``dimenet.triplets`` needs the sparse tensors of torch-sparse.
HAS_TRIPLETS: bool = getattr(extensions, "WITH_TORCH_SPARSE", False)
