"""Tools provided by a web service, called by requests to a URL."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import httpx

from ...runtime.protocol.errors import EngineError, RequestError
from ...runtime.tools.registry import check_tool
from ..types.annotations import described
from .tool import MAX_CHARS, Tool

_MAX_REDIRECTS = 5
_DEFAULT_TIMEOUT_S = 30.0
_MAX_ERROR_CHARS = 300


def http_tool(
    name: str,
    url: str,
    *,
    parameters: object = None,
    description: str = "",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _DEFAULT_TIMEOUT_S,
    max_chars: int = MAX_CHARS,
) -> Tool[..., str]:
    """Creates a tool that posts its arguments as JSON to `url`. The answer is text or JSON.

    parameters   JSON Schema of the arguments, or a dataclass, TypedDict or Pydantic model of them; None: any, as text
    headers      sent with each call, such as a key
    timeout_s    seconds for the whole call
    max_chars    maximum characters of the answer; more is an error

    Redirects are followed only within the same host.

    >>> weather = bough.http_tool("weather", "http://127.0.0.1:9000/weather", parameters=Place)

    Raises:
        RequestError: the URL is invalid, or `parameters` do not describe an object.
    """
    return _HttpTool(name, url, _schema_of(parameters), description, dict(headers or {}), timeout_s, max_chars)


class _HttpTool(Tool[..., str]):
    """See `http_tool`. Safe to call from many threads: connections are kept open between calls."""

    def __init__(
        self,
        name: str,
        url: str,
        parameters: Mapping[str, Any],
        description: str,
        headers: dict[str, str],
        timeout_s: float,
        max_chars: int,
    ) -> None:
        try:
            self._url = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise RequestError(f"the URL of tool {name!r} is none: {error}", param="url") from error
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise RequestError(f"the URL of tool {name!r} must be http or https, got {url!r}", param="url")
        self.name = name
        self.description = description
        self.parameters = parameters
        self.timeout_s = timeout_s
        self.max_chars = max_chars
        self.function = self._post_all
        self._client = httpx.Client(headers=headers, timeout=timeout_s, trust_env=False)
        check_tool(self)

    def __repr__(self) -> str:
        return f"<tool {self.name} at {self._url}>"

    def call(self, arguments: dict[str, Any]) -> str:
        return self._post_all(**arguments)

    def _post_all(self, **arguments: Any) -> str:
        deadline = time.monotonic() + (self.timeout_s or _DEFAULT_TIMEOUT_S)
        url = self._url
        for _ in range(_MAX_REDIRECTS):
            try:
                answer = self._post(url, arguments, deadline)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise EngineError(f"{self._url.host} cannot be reached: {reason}", code="tool_failed") from error
            if isinstance(answer, str):
                return answer
            url = answer
        raise EngineError(f"{self._url.host} redirects more than {_MAX_REDIRECTS} times", code="tool_failed")

    def _post(self, url: httpx.URL, arguments: Mapping[str, Any], deadline: float) -> str | httpx.URL:
        """The answer, or where it is to be asked for."""
        with self._client.stream("POST", url, json=arguments, timeout=max(0.001, deadline - time.monotonic())) as got:
            if got.is_redirect:
                return self._redirected(got)
            body = self._read(got, deadline)
        if got.is_error:
            raise EngineError(
                f"it answered with status {got.status_code}: {body[:_MAX_ERROR_CHARS]}", code="tool_failed"
            )
        return _unwrapped(body) if "json" in got.headers.get("content-type", "") else body

    def _redirected(self, got: httpx.Response) -> httpx.URL:
        url = got.url.join(got.headers.get("location", ""))
        same = (url.scheme, url.host, url.port) == (self._url.scheme, self._url.host, self._url.port)
        if not same or got.status_code not in (307, 308):
            raise EngineError(
                f"it redirects with status {got.status_code} to {url.host}: only 307 and 308 within the same host are "
                "followed",
                code="tool_failed",
            )
        return url

    def _read(self, got: httpx.Response, deadline: float) -> str:
        text = ""
        for chunk in got.iter_text():
            text += chunk
            if len(text) > self.max_chars and not got.is_error:
                raise EngineError(f"it answered with more than {self.max_chars} characters", code="tool_failed")
            if len(text) > self.max_chars:
                break
            if time.monotonic() > deadline:
                raise EngineError(f"it was not done within {self.timeout_s:g} s", code="tool_timeout")
        return text


def _unwrapped(body: str) -> str:
    """JSON as it is; of a JSON string, the text."""
    try:
        value = json.loads(body)
    except ValueError:
        return body
    return value if isinstance(value, str) else body


def _schema_of(parameters: object) -> Mapping[str, Any]:
    if parameters is None:
        return {"type": "object"}
    schema = dict(parameters) if isinstance(parameters, Mapping) else _schema_of_type(parameters)
    if schema.get("type") != "object" or not isinstance(schema.get("properties", {}), Mapping):
        raise RequestError("the parameters of a tool are the JSON Schema of an object", param="parameters")
    return schema


def _schema_of_type(kind: Any) -> dict[str, Any]:
    try:
        schema = described(kind).schema
    except TypeError as error:
        raise RequestError(f"{kind!r} does not describe a JSON object: {error}", param="parameters") from error
    reference = schema.get("$ref", "").rpartition("/")[2]
    definitions = schema.get("$defs", {})
    return {**definitions[reference], "$defs": definitions} if reference in definitions else schema
