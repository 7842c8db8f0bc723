//! Sends and receives messages between two ranks.

use std::ffi::c_int;
use std::sync::Arc;

use mpi_sys as sys;

use crate::comm::Comm;
use crate::data::{Datatype, SendBuf, count};
use crate::error::{Error, Result, check};
use crate::job::{Job, waiter_level};
use crate::operation::{Operation, start};
use crate::peers::Peers;
use crate::table::{Completion, Kind, Matched, Pattern, improbe, probe_completion};

/// The sender whose messages a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The rank with this number.
    Rank(usize),
    /// Any rank.
    Any,
}

impl From<usize> for Source {
    fn from(rank: usize) -> Source {
        Source::Rank(rank)
    }
}

/// The tag of the messages that a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The tag with this number. MPI guarantees 0 to 32767.
    Is(u16),
    /// Any tag.
    Any,
}

impl From<u16> for Tag {
    fn from(tag: u16) -> Tag {
        Tag::Is(tag)
    }
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received<T> {
    /// The items; there are as many as were sent.
    pub data: Vec<T>,
    /// The rank that sent the message.
    pub source: usize,
    /// The tag of the message.
    pub tag: u16,
}

fn source(comm: &Comm, source: Source) -> Result<c_int> {
    match source {
        Source::Rank(rank) => comm.checked_rank(rank),
        // SAFETY: the library defines this value as a constant.
        Source::Any => Ok(unsafe { sys::RSMPI_ANY_SOURCE }),
    }
}

fn tag(tag: Tag) -> c_int {
    match tag {
        Tag::Is(tag) => tag.into(),
        // SAFETY: the library defines this value as a constant.
        Tag::Any => unsafe { sys::RSMPI_ANY_TAG },
    }
}

impl Comm {
    /// Sends `buffer` to `rank`. The operation returns the buffer when it can be used again,
    /// possibly before the message is received.
    pub fn isend<B: SendBuf>(&self, buffer: B, rank: usize, tag: u16) -> Operation<B> {
        self.send_by(buffer, rank, tag, sys::MPI_Isend)
    }

    /// Sends like [`isend`](Self::isend), but completes only when the other rank has begun to
    /// receive the message.
    pub fn issend<B: SendBuf>(&self, buffer: B, rank: usize, tag: u16) -> Operation<B> {
        self.send_by(buffer, rank, tag, sys::MPI_Issend)
    }

    fn send_by<B: SendBuf>(
        &self,
        buffer: B,
        rank: usize,
        tag: u16,
        send: unsafe extern "C" fn(
            *const std::ffi::c_void,
            c_int,
            sys::MPI_Datatype,
            c_int,
            c_int,
            sys::MPI_Comm,
            *mut sys::MPI_Request,
        ) -> c_int,
    ) -> Operation<B> {
        let (items, length) = (buffer.items().as_ptr(), buffer.items().len());
        start(
            self.job(),
            Kind::Completes,
            self.peer(rank),
            Box::new(buffer),
            length * size_of::<B::Item>(),
            finish_send,
            |table, request| {
                let datatype = table.types.get::<B::Item>()?;
                let (length, rank) = (count(length)?, self.checked_rank(rank)?);
                // SAFETY: the items keep their address (`SendBuf`) while the buffer is in the
                // table, and the table owns it until MPI has finished.
                check(unsafe {
                    send(
                        items.cast(),
                        length,
                        datatype,
                        rank,
                        tag.into(),
                        self.handle(),
                        request,
                    )
                })?;
                Ok(datatype)
            },
        )
    }

    /// Receives a message into `buffer`. The message may have at most as many items as the buffer;
    /// a longer message is an error, and is lost.
    pub fn irecv<T: Datatype>(
        &self,
        mut buffer: Vec<T>,
        from: impl Into<Source>,
        with: impl Into<Tag>,
    ) -> Operation<Received<T>> {
        let (items, length) = (buffer.as_mut_ptr(), buffer.len());
        let (from, with) = (from.into(), tag(with.into()));
        let peers = match from {
            Source::Rank(rank) => self.peer(rank),
            Source::Any => Peers::None,
        };
        start(
            self.job(),
            Kind::Receive,
            peers,
            Box::new(buffer),
            length * size_of::<T>(),
            finish_receive::<T>,
            |table, request| {
                let datatype = table.types.get::<T>()?;
                let (length, from) = (count(length)?, source(self, from)?);
                // SAFETY: the table owns the items until MPI has finished; every bit pattern is a
                // `T`.
                check(unsafe {
                    sys::MPI_Irecv(
                        items.cast(),
                        length,
                        datatype,
                        from,
                        with,
                        self.handle(),
                        request,
                    )
                })?;
                Ok(datatype)
            },
        )
    }

    /// Waits for a message and reserves it. No other receive takes the message, and its length is
    /// known before it is received.
    pub fn improbe(&self, from: impl Into<Source>, with: impl Into<Tag>) -> Operation<Message> {
        let (from, with) = (source(self, from.into()), tag(with.into()));
        let level = waiter_level();
        let key = self.job().call(&Peers::None, |table| {
            let pattern = Pattern {
                comm: self.clone(),
                source: from?,
                tag: with,
            };
            Ok(match improbe(&pattern)? {
                None => table.insert_probe(pattern, level),
                found => table.insert_done(probe_completion(Ok(found), pattern.comm), level),
            })
        });
        Operation::new(self.job(), key, finish_probe)
    }
}

fn finish_send<B: SendBuf>(_: &Arc<Job>, completion: Completion) -> Result<B> {
    completion.outcome?;
    Ok(*completion
        .payload
        .downcast()
        .expect("the payload of a send"))
}

pub(crate) fn finish_receive<T: Datatype>(
    _: &Arc<Job>,
    completion: Completion,
) -> Result<Received<T>> {
    let outcome = completion.outcome?;
    if outcome.is_cancelled {
        return Err(Error::Ended);
    }
    let mut data: Vec<T> = *completion
        .payload
        .downcast()
        .expect("the payload of a receive");
    data.truncate(outcome.items.ok_or(Error::PartialItem)?);
    Ok(Received {
        data,
        source: usize::try_from(outcome.source).unwrap_or(0),
        tag: u16::try_from(outcome.tag).unwrap_or(0),
    })
}

fn finish_probe(_: &Arc<Job>, completion: Completion) -> Result<Message> {
    completion.outcome?;
    let payload = completion.payload.downcast();
    let (comm, matched): (Comm, Option<Matched>) = *payload.expect("the payload of a probe");
    Ok(Message { comm, matched })
}

/// A message that waits to be received. Dropping this value receives and discards the message.
pub struct Message {
    comm: Comm,
    matched: Option<Matched>,
}

impl Message {
    fn status(&self) -> Option<&sys::MPI_Status> {
        self.matched.as_ref().map(|matched| &matched.status)
    }

    /// Returns the rank that sent the message.
    #[must_use]
    pub fn source(&self) -> usize {
        let source = self.status().map_or(0, |status| status.MPI_SOURCE);
        usize::try_from(source).unwrap_or(0)
    }

    /// Returns the tag of the message.
    #[must_use]
    pub fn tag(&self) -> u16 {
        let tag = self.status().map_or(0, |status| status.MPI_TAG);
        u16::try_from(tag).unwrap_or(0)
    }

    /// Returns the length of the message in items of type `T`.
    ///
    /// # Errors
    /// [`Error::PartialItem`] if the length is not a whole number of items; [`Error::WrongThread`].
    pub fn length<T: Datatype>(&self) -> Result<usize> {
        let Some(status) = self.status() else {
            return Ok(0);
        };
        self.comm.job().call(&Peers::None, |table| {
            let datatype = table.types.get::<T>()?;
            crate::table::outcome(status, datatype)
                .items
                .ok_or(Error::PartialItem)
        })
    }

    /// Receives the message into a new buffer.
    pub fn receive<T: Datatype>(mut self) -> Operation<Received<T>> {
        let job = self.comm.job().clone();
        let length = match self.length::<T>() {
            Ok(length) => length,
            Err(error) => return Operation::new(&job, Err(error), finish_receive::<T>),
        };
        let (source, tag) = (self.source(), self.tag());
        let mut data = vec![T::zeroed(); length];
        let items = data.as_mut_ptr();
        start(
            &job,
            // A matched message cannot be cancelled.
            Kind::Completes,
            Peers::None,
            Box::new(Received { data, source, tag }),
            length * size_of::<T>(),
            finish_message::<T>,
            |table, request| {
                let datatype = table.types.get::<T>()?;
                let length = count(length)?;
                if let Some(matched) = &mut self.matched {
                    // SAFETY: the table owns the items until MPI has finished; every bit pattern is
                    // a `T`; the message is received once, because it is removed below.
                    check(unsafe {
                        sys::MPI_Imrecv(
                            items.cast(),
                            length,
                            datatype,
                            &mut matched.message,
                            request,
                        )
                    })?;
                }
                self.matched = None;
                Ok(datatype)
            },
        )
    }
}

/// Returns all items of a message. The probe has determined their number, the source and the tag.
fn finish_message<T: Datatype>(_: &Arc<Job>, completion: Completion) -> Result<Received<T>> {
    completion.outcome?;
    let payload = completion.payload.downcast();
    Ok(*payload.expect("the payload of a message"))
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(matched) = self.matched.take() {
            self.comm.job().with(|table| {
                table.unreceived.push(matched);
                table.request_look();
            });
        }
    }
}
