"""From settings to chains: finds interceptors by name and checks their options.

A name is that of a built-in interceptor, of an entry point in the group ``mqtt_kafka_gateway.interceptors`` (by which
another distribution offers its own), or ``module:attribute``. Only interceptors in the settings are imported.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError

from bridge.interceptors import Chain, Chains, Context, Stage
from bridge.routing.template import Template
from config.errors import ConfigError

if TYPE_CHECKING:
    from config.settings import InterceptorSettings, RouteSettings, Settings

GROUP: Final = "mqtt_kafka_gateway.interceptors"

BUILT_IN: Final[Mapping[str, str]] = {
    "age_out": "bridge.intercept.age_out:AgeOut",
    "fields": "bridge.intercept.fields:Fields",
    "filter": "bridge.intercept.filter:Filter",
    "headers": "bridge.intercept.headers:Headers",
    "json_schema": "bridge.intercept.json_schema:JsonSchema",
    "mask": "bridge.intercept.mask:Mask",
    "sample": "bridge.intercept.sample:Sample",
    "split": "bridge.intercept.split:Split",
}
"""The built-in interceptors. They are in code, because entry points depend on how the gateway was installed."""

NONE_READY: Final[Mapping[str, Chain]] = MappingProxyType({})
_COMMON: Final = ("use", "name", "on_error", "secret")  # keys of every interceptor's table


def load_chains(settings: Settings, ready: Mapping[str, Chain] = NONE_READY) -> Chains:
    """The chain of each route with interceptors; ``ready`` has those that exist. Imports modules, so it may block.

    Raises ConfigError with a sentence for each interceptor that is not found or has wrong options."""
    chains: dict[str, Chain] = {}
    problems: list[str] = []
    for index, route in enumerate(settings.routes):
        if route.name in ready:
            chains[route.name] = ready[route.name]
            continue
        stages: list[Stage] = []
        placed = [(f"interceptors[{n}]", one) for n, one in enumerate(settings.interceptors)]
        placed += [(f"routes[{index}].interceptors[{n}]", one) for n, one in enumerate(route.interceptors)]
        for at, one in placed:
            where = f"route {route.name!r}, {at} ({one.label})"
            try:
                stages.append(_stage(one, where, route, settings.instance))
            except ConfigError as error:
                problems += error.problems
        if stages:
            chains[route.name] = Chain(route.name, stages)
    if problems:
        Chains({name: chain for name, chain in chains.items() if name not in ready}).close()
        raise ConfigError(*problems)
    return Chains(chains)


def warm_up(settings: Settings) -> None:
    """Import the interceptors in a thread before ``load_chains``, which reports the errors."""
    for one in (*settings.interceptors, *(one for route in settings.routes for one in route.interceptors)):
        with contextlib.suppress(ConfigError):
            _find(one.use, one.use)


def _stage(settings: InterceptorSettings, where: str, route: RouteSettings, instance: str) -> Stage:
    """Create and configure one interceptor. Raises ConfigError with sentences that begin with ``where``."""
    make = _find(settings.use, where)
    try:
        interceptor = make()
    except Exception as error:
        raise ConfigError(f"{where}: use = {settings.use!r} cannot be created: {_told(error)}") from error
    if not callable(getattr(interceptor, "on_send", None)):
        raise ConfigError(f"{where}: use = {settings.use!r} is no interceptor: it has no method on_send")
    options = _options(interceptor, settings, where)
    context = Context(
        route.name, instance, settings.label, functools.partial(_template, instance=instance, device=route.device)
    )
    configure = getattr(interceptor, "configure", None)
    if callable(configure):
        try:
            configure(options, context)
        except ConfigError as error:
            raise ConfigError(*(f"{where}, {problem}" for problem in error.problems)) from error
        except Exception as error:
            raise ConfigError(f"{where}, {error if isinstance(error, ValueError) else _told(error)}") from error
    return Stage(interceptor, label=settings.label, where=where, policy=settings.on_error)


def _template(text: str, *, instance: str, device: str | None) -> Template:
    of_device = Template.parse(device, where="the route's device") if device else None
    return Template.parse(text).bind(instance=instance, device=of_device)


# --- finding ---


def _find(use: str, where: str) -> Callable[[], Any]:
    """The interceptor's class, or a function without arguments that creates it."""
    place = BUILT_IN.get(use)
    if place is not None:
        found = _load(place, use, where)
    elif ":" in use:
        found = _load(use, use, where)
    else:
        found = _entry_point(use, where)
    if not callable(found):
        raise ConfigError(f"{where}: use = {use!r} is {type(found).__name__}; a class (or a function) is wanted")
    make: Callable[[], Any] = found
    return make


def _load(place: str, use: str, where: str) -> Any:
    """The object at ``place``, which is module:attribute. ``use`` is what the settings say. Raises ConfigError."""
    module_name, _, attribute = place.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            hint = "is its package installed here, and the name spelt right?"
        else:
            hint = "it is needed by that module; is it installed here?"
        raise ConfigError(f"{where}: use = {use!r}: there is no module {missing!r}: {hint}") from error
    except Exception as error:
        raise ConfigError(f"{where}: use = {use!r}: importing {module_name} failed: {_told(error)}") from error
    try:
        for step in attribute.split("."):
            found = getattr(found, step)
    except AttributeError:
        raise ConfigError(f"{where}: use = {use!r}: the module {module_name} has no {attribute!r}") from None
    return found


def _entry_point(use: str, where: str) -> Any:
    """The object that an installed package offers under the name ``use``. Raises ConfigError."""
    from importlib.metadata import entry_points  # reads the metadata of every installed package

    points = entry_points(group=GROUP)
    named = [point for point in points if point.name == use]
    if not named:
        known = sorted({*BUILT_IN, *(point.name for point in points)})
        near = difflib.get_close_matches(use, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{where}: use = {use!r} is unknown: no built-in interceptor, and no installed package offers it "
            f"(entry points {GROUP}); {hint}known are {', '.join(known)}"
        )
    if len({point.value for point in named}) > 1:
        raise ConfigError(
            f"{where}: use = {use!r} is offered by several packages: {', '.join(sorted(p.value for p in named))}; "
            "write module:attribute instead"
        )
    return _load(named[0].value, use, where)


# --- options ---


def _options(interceptor: Any, settings: InterceptorSettings, where: str) -> Any:
    """The settings' options as the interceptor's own model, or as they are without one. Raises ConfigError."""
    model = getattr(interceptor, "Options", None)
    options = settings.options
    if model is None:
        return options
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigError(f"{where}: the interceptor's Options are no pydantic model")
    try:
        return model.model_validate(options)
    except ValidationError as error:
        known = [*model.model_fields, *_COMMON]
        found = error.errors(include_url=False, include_input=False, include_context=False)
        problems = [_problem(tuple(one["loc"]), one["type"], one["msg"], known) for one in found]
    raise ConfigError(*(f"{where}, {problem}" for problem in problems))


def _problem(loc: tuple[int | str, ...], kind: str, message: str, known: list[str]) -> str:
    """The sentence for one of pydantic's errors. ``known`` are the names of all options."""
    option = ".".join(str(step) for step in loc if step != "[key]") or "the options"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(option, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(known)}"
        return f"{option}: is no option of this interceptor; {hint}"
    if kind == "missing":
        return f"{option}: is required and not given"
    return f"{option}: {message.removeprefix('Value error, ')}"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
