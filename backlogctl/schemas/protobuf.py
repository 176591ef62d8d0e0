"""Protobuf: rows to its bytes, and back, by types that are made from the schema's text."""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from backlogctl.errors import ConfigurationError
from backlogctl.schemas.avro import read_date, read_moment
from backlogctl.schemas.frames import Unfit, Unreadable
from backlogctl.schemas.registry import WriterSchema
from backlogctl.schemas.shapes import DEEPEST, TEXT, Entries, Items, Shape

Convert = Callable[[Any], Any]
_MAIN = "backlogctl-main.proto"
# What defines the files of Confluent that schemas import, and no registry has.
_CONFLUENT = (
    "confluent_kafka.schema_registry.confluent.meta_pb2",
    "confluent_kafka.schema_registry.confluent.types.decimal_pb2",
)
_CONFLUENT_FILES = ("confluent/meta.proto", "confluent/type/decimal.proto")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
_COMPILE_SECONDS = 60


def compile_schema(schema: WriterSchema) -> bytes:
    """A FileDescriptorSet of the schema and all that it imports, the schema last: what workers
    need of it.

    Raises:
        ConfigurationError: protoc does not take the text, or an import is nowhere.
    """
    given = {name: _read_descriptor(text) for name, text in schema.references}
    main = _read_descriptor(schema.text)
    if main is None:
        return _run_protoc(schema)
    files: dict[str, Any] = {}
    for imported in main.dependency:
        _collect(imported, given, files)
    found = descriptor_pb2.FileDescriptorSet()
    found.file.extend([*files.values(), main])
    made: bytes = found.SerializeToString()
    return made


def _read_descriptor(text: str) -> Any:
    """What the clients of Go and Python register: base64 of the descriptor; None for source."""
    try:
        raw = base64.b64decode(text, validate=True)
        found = descriptor_pb2.FileDescriptorProto.FromString(raw)
    except (binascii.Error, DecodeError, ValueError):
        return None
    # Clients in Python leave the name out, and a file must have one.
    found.name = found.name or _MAIN
    return found


def _collect(name: str, given: Mapping[str, Any], into: dict[str, Any]) -> None:
    if name in into:
        return
    found = given.get(name)
    if found is None:
        found = _copy_shipped(name)
    else:
        found.name = name
    for imported in found.dependency:
        _collect(imported, given, into)
    into[name] = found


def _copy_shipped(name: str) -> Any:
    """A file that came with Protobuf, googleapis-common-protos or Confluent's client."""
    own = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    modules = _CONFLUENT if name.startswith("confluent/") else (own,)
    found = descriptor_pb2.FileDescriptorProto()
    try:
        if not name.startswith(("confluent/", "google/")):
            raise ImportError(name)
        for module in modules:
            import_module(module)
        descriptor_pool.Default().FindFileByName(name).CopyToProto(found)
    except (ImportError, KeyError):
        raise ConfigurationError(
            f"the schema imports {name}, which is no reference of it in the registry",
            subject="schema",
            hint="register it with its references, or put all into one file",
        ) from None
    return found


def _run_protoc(schema: WriterSchema) -> bytes:
    grpc_tools = import_module("grpc_tools")
    known = Path(str(grpc_tools.__file__)).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="backlog-proto-") as folder:
        root = Path(folder)
        for name, text in (*schema.references, (_MAIN, schema.text)):
            if _read_descriptor(text) is not None:
                raise ConfigurationError(
                    f"{name} is a compiled descriptor, and what refers to it is source",
                    subject="schema",
                    hint="register both in one form",
                )
            place = (root / name).resolve()
            if root.resolve() not in place.parents:
                raise ConfigurationError(f"{name} is no name of a file", subject="schema")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        own = root / "shipped.set"
        own.write_bytes(_list_confluent())
        places = [str(root), str(known), str(Path(str(grpc_tools.__file__)).parents[1])]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc"),
                *(f"-I{place}" for place in places),
                f"--descriptor_set_in={own}",
                *("--include_imports", f"--descriptor_set_out={root / 'out.set'}", _MAIN),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMPILE_SECONDS,
        )
        if done.returncode:
            told = re.findall(rf"{re.escape(_MAIN)}:(\d.*)", done.stderr) or [done.stderr.strip()]
            raise ConfigurationError(
                f"protoc does not take the schema: {told[0] or 'it says nothing'}",
                subject="schema",
                hint="what it imports must be a reference of it in the registry",
            )
        return (root / "out.set").read_bytes()


def _list_confluent() -> bytes:
    """Confluent's files and what they need, for a compiler that knows none of them."""
    files: dict[str, Any] = {}
    for name in _CONFLUENT_FILES:
        _collect(name, {}, files)
    found = descriptor_pb2.FileDescriptorSet()
    found.file.extend(files.values())
    made: bytes = found.SerializeToString()
    return made


class ProtobufCodec:
    """One type of one schema.

    Args:
        compiled: what `compile_schema` gives.
        message: the full name of the type; "" goes by the indexes.
        indexes: as in a message's frame.

    Raises:
        ConfigurationError: the schema has no such type.
    """

    def __init__(self, compiled: bytes, message: str, indexes: tuple[int, ...]) -> None:
        found = descriptor_pb2.FileDescriptorSet.FromString(compiled)
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in found.file:
                pool.Add(file)
            main = pool.FindFileByName(found.file[-1].name)
            self._type = _find_by_name(pool, message) if message else _find_by_index(main, indexes)
        except (KeyError, TypeError, IndexError) as error:
            name = message or f"at {list(indexes)}"
            raise ConfigurationError(
                f"the schema has no message {name}: {error}", subject="schema"
            ) from None
        self.indexes = _list_indexes(self._type)
        self._class = message_factory.GetMessageClass(self._type)
        self._made: dict[str, Convert] = {}
        self._convert = self._compile(self._type, "")

    @property
    def required(self) -> frozenset[str]:
        """Fields that proto2 requires; proto3 has none."""
        return frozenset(one.name for one in self._type.fields if one.is_required)

    @property
    def shape(self) -> Shape:
        """What `decode` gives."""
        return _find_shape(self._type, 0)

    def encode(self, value: Any) -> bytes:
        """The bytes of a row; a NULL is a field that is not set.

        Raises:
            Unfit: names the field that the schema does not take.
        """
        fields = self._convert(value)
        try:
            made: bytes = self._class(**fields).SerializeToString(deterministic=True)
        except (ValueError, TypeError, OverflowError, EncodeError) as error:
            raise Unfit(f"the schema does not take it ({type(error).__name__})") from None
        return made

    def decode(self, raw: bytes) -> Any:
        """A value as JSON says it by Protobuf's own rules, but with the names of the schema, and
        with the fields that hold their default: those are not in the bytes.

        Raises:
            Unreadable
        """
        try:
            return json_format.MessageToDict(
                self._read(raw),
                always_print_fields_with_no_presence=True,
                preserving_proto_field_name=True,
                descriptor_pool=self._type.file.pool,
            )
        # An `Any` of a type that is not known, a time out of range.
        except (json_format.Error, TypeError, ValueError) as error:
            raise Unreadable(f"it has no JSON: {type(error).__name__}") from None

    def encode_again(self, raw: bytes) -> bytes:
        """What this library writes for the same message."""
        made: bytes = self._read(raw).SerializeToString(deterministic=True)
        return made

    def _read(self, raw: bytes) -> Message:
        try:
            return self._class.FromString(raw)
        except DecodeError:
            raise Unreadable("it is not of its schema") from None

    def _compile(self, kind: Descriptor, path: str) -> Convert:
        if (special := _SPECIAL.get(kind.full_name)) is not None:
            return _guard(special, path, kind.full_name)
        if kind.full_name in _WRAPPERS:
            inner = self._compile_one(kind.fields_by_name["value"], path)
            return lambda value: {"value": inner(value)}
        fields: dict[str, Convert] = {}
        self._made[kind.full_name] = convert = _make_message(fields, kind, path)
        for one in kind.fields:
            fields[one.name] = self._compile_field(one, f"{path}.{one.name}" if path else one.name)
        return convert

    def _compile_field(self, field: FieldDescriptor, path: str) -> Convert:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            key = self._compile_one(kind.fields_by_name["key"], path)
            item = self._compile_one(kind.fields_by_name["value"], path)

            def convert_map(value: Any) -> dict[Any, Any]:
                if not isinstance(value, Mapping | list):
                    raise _unfit(path, value, "a map")
                pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
                return {key(name): item(one) for name, one in pairs}

            return convert_map
        one = self._compile_one(field, path)
        if not field.is_repeated:
            return one

        def convert_list(value: Any) -> list[Any]:
            if not isinstance(value, list | tuple):
                raise _unfit(path, value, "a list")
            return [one(item) for item in value]

        return convert_list

    def _compile_one(self, field: FieldDescriptor, path: str) -> Convert:
        if (kind := field.message_type) is not None:
            return self._made.get(kind.full_name) or self._compile(kind, path)
        if (choice := field.enum_type) is not None:
            numbers = {one.name: one.number for one in choice.values}
            return _guard(lambda value: numbers[value] if isinstance(value, str) else value,
                          path, f"a symbol of {choice.name}")  # fmt: skip
        wanted = _NAMES[field.cpp_type]
        if (within := _WHOLES.get(field.cpp_type)) is not None:
            return _guard(partial(_read_whole, within=within), path, wanted)
        read = _SCALARS[field.cpp_type]
        if field.type == FieldDescriptor.TYPE_BYTES:
            read, wanted = _read_bytes, "bytes"
        return _guard(read, path, wanted)


def _make_message(fields: Mapping[str, Convert], kind: Descriptor, path: str) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _unfit(path, value, kind.name)
        if strange := [name for name in value if name not in fields]:
            raise Unfit(f"field {path + '.' if path else ''}{strange[0]}: the schema has none")
        return {name: fields[name](item) for name, item in value.items() if item is not None}

    return convert


def _find_shape(kind: Descriptor, depth: int) -> Shape:
    if kind.full_name in _WRAPPERS:
        return _find_field_shape(kind.fields_by_name["value"], depth)
    # Others of Protobuf's own have a JSON of their own.
    if depth > DEEPEST or kind.file.name.startswith("google/protobuf/"):
        return TEXT
    return {one.name: _find_field_shape(one, depth + 1) for one in kind.fields}


def _find_field_shape(field: FieldDescriptor, depth: int) -> Shape:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return Entries(_find_field_shape(kind.fields_by_name["value"], depth + 1))
    if kind is not None:
        one = _find_shape(kind, depth)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = TEXT
    else:
        one = _SHAPES.get(field.cpp_type, TEXT)
    return Items(one) if field.is_repeated else one


def _find_by_name(pool: Any, name: str) -> Descriptor:
    return pool.FindMessageTypeByName(name)


def _find_by_index(file: Any, indexes: tuple[int, ...]) -> Descriptor:
    first, *rest = indexes or (0,)
    found = list(file.message_types_by_name.values())[first]
    for number in rest:
        found = found.nested_types[number]
    return found


def _list_indexes(kind: Descriptor) -> tuple[int, ...]:
    path: list[int] = []
    while (outer := kind.containing_type) is not None:
        path.insert(0, [one.full_name for one in outer.nested_types].index(kind.full_name))
        kind = outer
    names = list(kind.file.message_types_by_name)
    return (names.index(kind.name), *path)


def _unfit(path: str, value: Any, wanted: str) -> Unfit:
    """Values are data: they are not quoted."""
    name = f"field {path}" if path else "the value"
    given = "NULL" if value is None else type(value).__name__
    return Unfit(f"{name}: the schema has {wanted}, the row {given}")


def _guard(read: Convert, path: str, wanted: str) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError, ArithmeticError, LookupError):
            raise _unfit(path, value, wanted) from None

    return convert


def _read_whole(value: Any, within: tuple[int, int]) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise TypeError
    if isinstance(value, Decimal) and value != value.to_integral_value():
        raise ValueError
    number, (least, most) = int(value), within
    if not least <= number <= most:
        raise ValueError
    return number


def _read_real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int | str | Decimal):
        raise TypeError
    return float(value)


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _read_timestamp(value: Any) -> dict[str, int]:
    whole, rest = divmod(read_moment(value) - _EPOCH, _SECOND)
    return {"seconds": whole, "nanos": rest // _MICROSECOND * 1000}


def _read_day(value: Any) -> dict[str, int]:
    day = read_date(value)
    return {"year": day.year, "month": day.month, "day": day.day}


def _read_decimal(value: Any) -> dict[str, Any]:
    """As Confluent's converters do: the unscaled number, big-endian in two's complement."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise TypeError
    sign, digits, scale = Decimal(value).as_tuple()
    if not isinstance(scale, int):
        raise ValueError
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    if scale > 0:
        number, scale = number * 10**scale, 0
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    raw = number.to_bytes(size, "big", signed=True)
    return {"value": raw, "precision": len(str(abs(number))), "scale": -scale}


_SPECIAL: Mapping[str, Convert] = {
    "google.protobuf.Timestamp": _read_timestamp,
    "google.type.Date": _read_day,
    "confluent.type.Decimal": _read_decimal,
}
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in (
        *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"),
    )
)
_WHOLES: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_SCALARS: Mapping[int, Convert] = {
    FieldDescriptor.CPPTYPE_DOUBLE: _read_real,
    FieldDescriptor.CPPTYPE_FLOAT: _read_real,
    FieldDescriptor.CPPTYPE_BOOL: _read_bool,
    FieldDescriptor.CPPTYPE_STRING: _read_text,
}
# JSON writes 64 bits as text, which a decimal is read from.
_SHAPES: Mapping[int, Shape] = {
    FieldDescriptor.CPPTYPE_INT32: "bigint",
    FieldDescriptor.CPPTYPE_UINT32: "bigint",
    FieldDescriptor.CPPTYPE_INT64: "decimal(20,0)",
    FieldDescriptor.CPPTYPE_UINT64: "decimal(20,0)",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_FLOAT: "double",
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
}
_NAMES: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of 64 bits",
    FieldDescriptor.CPPTYPE_UINT32: "a whole number of 32 bits, none below 0",
    FieldDescriptor.CPPTYPE_UINT64: "a whole number of 64 bits, none below 0",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
}
