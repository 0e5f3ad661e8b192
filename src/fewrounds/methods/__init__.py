"""One file a method, its equations at the top."""

from fewrounds.methods.base import REGISTRY, Method, State, method, register
from fewrounds.methods.budget import for_budget
from fewrounds.methods.bvr_l_sgd import BVRLSGD
from fewrounds.methods.ce_lsgd import CELSGD
from fewrounds.methods.fedglomo import FedGLOMO
from fewrounds.methods.inexact_dane import InexactDANE
from fewrounds.methods.local_gd import LocalGD
from fewrounds.methods.local_sgd import LocalSGD
from fewrounds.methods.mime import MIME
from fewrounds.methods.mimelite import MIMELite
from fewrounds.methods.minibatch_sgd import MinibatchSGD
from fewrounds.methods.pr_spider import PRSPIDER
from fewrounds.methods.sarah import SARAH
from fewrounds.methods.scaffold import SCAFFOLD
from fewrounds.methods.svrg import SVRG

__all__ = [
    "BVRLSGD",
    "CELSGD",
    "FedGLOMO",
    "InexactDANE",
    "LocalGD",
    "LocalSGD",
    "MIME",
    "MIMELite",
    "Method",
    "MinibatchSGD",
    "PRSPIDER",
    "REGISTRY",
    "SARAH",
    "SCAFFOLD",
    "SVRG",
    "State",
    "for_budget",
    "method",
    "register",
]
