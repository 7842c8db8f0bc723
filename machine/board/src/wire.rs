//! The messages between a process and the daemon. They have a fixed layout and are little-endian.
//! Each is one packet of a SOCK_SEQPACKET socket.
//!
//! ```text
//! every message     magic u32 "UPBD" │ version u16 │ kind u16 │ body
//! process → daemon
//!   1 Register      vcpus u16 │ threads u16 │ cpu u32 … │ (tid i32, vcpu u16, role u16) …
//!                   + 1 descriptor: local page
//!   2 Update        added u16 │ removed u16 │ (tid i32, vcpu u16, role u16) … │ tid i32 …
//!   3 Leave
//!   4 Census
//! daemon → process
//!   129 Welcome     generation u64 │ session u32 │ slot u32 │ vcpus u16 │ enforcing u16
//!                   + 1 + vcpus descriptors: global page, doorbells
//!   130 Done        kind of the request u16
//!   132 Census      bytes u32
//!                   + 1 descriptor: JSON
//!   255 Refused     reason u16 │ text, UTF-8, to the end
//! ```
//!
//! Decoding allocates nothing, never panics, and accepts only messages of the exact length. The
//! caller handles descriptors.
//!
//! ```
//! use upshift_board::wire::{Request, buffer, encode_leave};
//!
//! let mut message = buffer();
//! let length = encode_leave(&mut message);
//! assert_eq!(Request::decode(&message[..length]), Ok(Request::Leave));
//! assert!(Request::decode(&message[..length - 1]).is_err());
//! ```

mod bytes;
mod error;
mod lists;

use core::str;

use crate::layout::VCPUS;
use bytes::{Reader, Writer};
use lists::THREAD_LEN;

pub use error::{Reason, WireError};
pub use lists::{Cpus, Role, Thread, Threads, Tids};

/// The first four bytes of every message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"UPBD");

/// Maximum number of threads in one message.
pub const THREADS: usize = 512;

/// Length of the longest message, in bytes.
pub const MAX_MESSAGE_LEN: usize = HEADER_LEN + 4 + VCPUS * 4 + THREADS * THREAD_LEN;

/// Length of the header of a message, in bytes.
const HEADER_LEN: usize = 8;
/// Maximum length of the text of a refusal, in bytes.
const MAX_TEXT_LEN: usize = 1024;

/// A message to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Registers the process. The packet carries the sealed local page as a descriptor.
    Register {
        /// CPU of each vCPU.
        cpus: Cpus<'a>,
        /// Threads of the vCPUs.
        threads: Threads<'a>,
    },
    /// Changes the threads of a registration.
    Update {
        /// Threads that were started.
        added: Threads<'a>,
        /// Threads that have ended.
        removed: Tids<'a>,
    },
    /// Ends the registration. The daemon restores the scheduling of all its threads, and then
    /// replies.
    Leave,
    /// Asks for the state of the whole machine.
    Census,
}

/// A message from the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The registration succeeded. The packet carries the descriptors of the global page and of a
    /// doorbell for each vCPU.
    Welcome {
        /// Number that identifies the running daemon.
        generation: u64,
        /// Number that identifies the registration.
        session: u32,
        /// Slot of vCPU 0 in the global page; the slots of the other vCPUs follow.
        slot: u32,
        /// Number of registered vCPUs.
        vcpus: u16,
        /// Whether the daemon elevates threads; if not, processes yield voluntarily.
        enforcing: bool,
    },
    /// The request of this kind succeeded.
    Done(u16),
    /// The packet carries the descriptor of a memory file with `bytes` of JSON.
    Census {
        /// Length of the JSON.
        bytes: u32,
    },
    /// The request failed.
    Refused {
        /// Category of the reason.
        reason: Reason,
        /// The reason as text, with a remedy.
        text: &'a str,
    },
}

/// A buffer that holds any message.
pub type Buffer = [u8; MAX_MESSAGE_LEN];

/// Creates an empty [`Buffer`].
pub const fn buffer() -> Buffer {
    [0; MAX_MESSAGE_LEN]
}

const REGISTER: u16 = 1;
const UPDATE: u16 = 2;
const LEAVE: u16 = 3;
const CENSUS: u16 = 4;
const WELCOME: u16 = 129;
const DONE: u16 = 130;
const CENSUS_REPLY: u16 = 132;
const REFUSED: u16 = 255;

/// Encodes a Register request; returns its length, or `None` if there are more than [`VCPUS`] vCPUs
/// or [`THREADS`] threads.
pub fn encode_register(buffer: &mut Buffer, cpus: &[u32], threads: &[Thread]) -> Option<usize> {
    if cpus.len() > VCPUS || threads.len() > THREADS {
        return None;
    }
    let mut writer = Writer::new(buffer, REGISTER);
    writer.put(&(cpus.len() as u16).to_le_bytes());
    writer.put(&(threads.len() as u16).to_le_bytes());
    for cpu in cpus {
        writer.put(&cpu.to_le_bytes());
    }
    for thread in threads {
        writer.thread(thread);
    }
    Some(writer.len)
}

/// Encodes an Update request; returns its length, or `None` if there are more than [`THREADS`]
/// threads in all.
pub fn encode_update(buffer: &mut Buffer, added: &[Thread], removed: &[i32]) -> Option<usize> {
    if added.len() + removed.len() > THREADS {
        return None;
    }
    let mut writer = Writer::new(buffer, UPDATE);
    writer.put(&(added.len() as u16).to_le_bytes());
    writer.put(&(removed.len() as u16).to_le_bytes());
    for thread in added {
        writer.thread(thread);
    }
    for tid in removed {
        writer.put(&tid.to_le_bytes());
    }
    Some(writer.len)
}

/// Encodes a Leave request; returns its length.
pub fn encode_leave(buffer: &mut Buffer) -> usize {
    Writer::new(buffer, LEAVE).len
}

/// Encodes a Census request; returns its length.
pub fn encode_census(buffer: &mut Buffer) -> usize {
    Writer::new(buffer, CENSUS).len
}

impl<'a> Request<'a> {
    /// Decodes a message to the daemon.
    ///
    /// # Errors
    /// [`WireError`], unless the bytes are one complete and valid message.
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, WireError> {
        let mut reader = Reader(bytes);
        let request = match reader.header()? {
            REGISTER => {
                let (vcpus, threads) = (reader.u16()?, reader.u16()?);
                let vcpus = usize::from(vcpus);
                if vcpus == 0 || vcpus > VCPUS {
                    return Err(WireError::Body);
                }
                Request::Register {
                    cpus: Cpus(reader.take(vcpus * 4)?),
                    threads: reader.threads(usize::from(threads), vcpus)?,
                }
            }
            UPDATE => {
                let (added, removed) = (reader.u16()?, reader.u16()?);
                let (added, removed) = (usize::from(added), usize::from(removed));
                if added + removed > THREADS {
                    return Err(WireError::Body);
                }
                Request::Update {
                    added: reader.threads(added, VCPUS)?,
                    removed: Tids(reader.take(removed * 4)?),
                }
            }
            LEAVE => Request::Leave,
            CENSUS => Request::Census,
            other => return Err(WireError::Kind(other)),
        };
        reader.end()?;
        Ok(request)
    }

    /// Returns the number of the kind, which [`Reply::Done`] repeats.
    pub fn kind(&self) -> u16 {
        match self {
            Request::Register { .. } => REGISTER,
            Request::Update { .. } => UPDATE,
            Request::Leave => LEAVE,
            Request::Census => CENSUS,
        }
    }
}

impl<'a> Reply<'a> {
    /// Encodes the message; returns its length. A text longer than 1024 bytes is truncated.
    pub fn encode(&self, buffer: &mut Buffer) -> usize {
        match *self {
            Reply::Welcome {
                generation,
                session,
                slot,
                vcpus,
                enforcing,
            } => {
                let mut writer = Writer::new(buffer, WELCOME);
                writer.put(&generation.to_le_bytes());
                writer.put(&session.to_le_bytes());
                writer.put(&slot.to_le_bytes());
                writer.put(&vcpus.to_le_bytes());
                writer.put(&u16::from(enforcing).to_le_bytes());
                writer.len
            }
            Reply::Done(kind) => {
                let mut writer = Writer::new(buffer, DONE);
                writer.put(&kind.to_le_bytes());
                writer.len
            }
            Reply::Census { bytes } => {
                let mut writer = Writer::new(buffer, CENSUS_REPLY);
                writer.put(&bytes.to_le_bytes());
                writer.len
            }
            Reply::Refused { reason, text } => {
                let mut writer = Writer::new(buffer, REFUSED);
                writer.put(&reason.number().to_le_bytes());
                let mut end = text.len().min(MAX_TEXT_LEN);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                writer.put(&text.as_bytes()[..end]);
                writer.len
            }
        }
    }

    /// Decodes a message from the daemon.
    ///
    /// # Errors
    /// [`WireError`], unless the bytes are one complete and valid message.
    pub fn decode(bytes: &'a [u8]) -> Result<Reply<'a>, WireError> {
        let mut reader = Reader(bytes);
        let reply = match reader.header()? {
            WELCOME => Reply::Welcome {
                generation: reader.u64()?,
                session: reader.u32()?,
                slot: reader.u32()?,
                vcpus: reader.u16()?,
                enforcing: match reader.u16()? {
                    0 => false,
                    1 => true,
                    _ => return Err(WireError::Body),
                },
            },
            DONE => Reply::Done(reader.u16()?),
            CENSUS_REPLY => Reply::Census {
                bytes: reader.u32()?,
            },
            REFUSED => {
                let reason = Reason::from_number(reader.u16()?);
                let text = reader.take(reader.0.len())?;
                Reply::Refused {
                    reason,
                    text: str::from_utf8(text).map_err(|_| WireError::Body)?,
                }
            }
            other => return Err(WireError::Kind(other)),
        };
        reader.end()?;
        Ok(reply)
    }
}
