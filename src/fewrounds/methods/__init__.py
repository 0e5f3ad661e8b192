"""One file a method, its equations at the top."""

from fewrounds.methods.base import REGISTRY, Method, State, method, register
from fewrounds.methods.budget import for_budget
from fewrounds.methods.bvr_l_sgd import BVRLSGD
from fewrounds.methods.local_gd import LocalGD
from fewrounds.methods.local_sgd import LocalSGD
from fewrounds.methods.minibatch_sgd import MinibatchSGD
from fewrounds.methods.sarah import SARAH
from fewrounds.methods.scaffold import SCAFFOLD

__all__ = [
    "BVRLSGD",
    "LocalGD",
    "LocalSGD",
    "Method",
    "MinibatchSGD",
    "REGISTRY",
    "SARAH",
    "SCAFFOLD",
    "State",
    "for_budget",
    "method",
    "register",
]
