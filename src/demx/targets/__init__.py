"""Targets by name. A new one is one file and one line here; settings are keyword arguments."""

TARGETS = {
    "gmm40": "demx.targets.gaussian_mixture:gmm40",
    "gaussian_mixture": "demx.targets.gaussian_mixture:gaussian_mixture",
    "dw4": "demx.targets.double_well:dw4",
    "double_well": "demx.targets.double_well:double_well",
    "lj13": "demx.targets.lennard_jones:lj13",
    "lj55": "demx.targets.lennard_jones:lj55",
    "lennard_jones": "demx.targets.lennard_jones:lennard_jones",
    "many_well": "demx.targets.many_well:many_well",
}
