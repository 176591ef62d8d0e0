from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[Status]
    COMMITTED: _ClassVar[Status]
    ROLLED_BACK: _ClassVar[Status]

UNKNOWN: Status
COMMITTED: Status
ROLLED_BACK: Status

class CheckRequest(_message.Message):
    __slots__ = ("biz_id", "biz_type")
    BIZ_TYPE_FIELD_NUMBER: _ClassVar[int]
    BIZ_ID_FIELD_NUMBER: _ClassVar[int]
    biz_type: str
    biz_id: str
    def __init__(self, biz_type: str | None = ..., biz_id: str | None = ...) -> None: ...

class CheckReply(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: Status | str | None = ...) -> None: ...
