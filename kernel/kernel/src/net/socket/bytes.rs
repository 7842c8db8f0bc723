//! Copies the bytes of a connection between the socket's buffer and its reader or writer, in place,
//! under the lock of the endpoint.

use os_abi::Error;

use super::slots::BUFFER;
use super::{Socket, State};
use crate::executor::level;
use crate::net::endpoint::endpoint;
use crate::net::requests::requests;

impl Socket {
    /// Passes at most `max_len` received bytes to `take`, in one or two pieces with their offsets;
    /// 0 bytes at the end. Returns `None` if no bytes have arrived.
    pub(crate) fn read(
        &self,
        max_len: usize,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Stream(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut endpoint = endpoint(index);
        let socket = endpoint.tcp();
        let waiting = socket.recv_queue();
        if waiting == 0 && socket.may_recv() && max_len > 0 {
            return None;
        }
        let (mut done, mut failed) = (0, None);
        // The bytes are in at most two pieces.
        while done < max_len.min(waiting) && failed.is_none() {
            let read = socket.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(max_len - done)];
                match take(done, bytes) {
                    Ok(()) => (bytes.len(), Ok(bytes.len())),
                    Err(error) => (0, Err(error)),
                }
            });
            match read.unwrap_or(Err(Error::BrokenPipe)) {
                Ok(count) => done += count,
                Err(error) => failed = Some(error),
            }
        }
        // The peer may wait for space. A window update is sent once the space has doubled; not
        // before the buffer was half full, but at the latest when all bytes have been read.
        let has_more_room = waiting >= BUFFER / 2 || endpoint.was_half_full;
        endpoint.was_half_full = has_more_room && done < waiting;
        drop(endpoint);
        if has_more_room {
            requests().add_work(index, level());
        }
        match failed {
            Some(error) if done == 0 => Some(Err(error)),
            _ => Some(Ok(done)),
        }
    }

    /// Lets `put` write all `len` bytes if `all` is set, else as many as fit, in one or two pieces
    /// with their offsets. Returns `None` if there is no space.
    pub(crate) fn write(
        &self,
        len: usize,
        all: bool,
        mut put: impl FnMut(usize, &mut [u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Stream(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut endpoint = endpoint(index);
        let is_ending = endpoint.is_ending;
        let socket = endpoint.tcp();
        if is_ending || !socket.may_send() {
            return Some(Err(Error::BrokenPipe));
        }
        let space = socket.send_capacity() - socket.send_queue();
        if space < if all { len } else { len.min(1) } {
            return None;
        }
        let (mut done, mut failed) = (0, None);
        while done < len.min(space) && failed.is_none() {
            let written = socket.send(|bytes| {
                let fits = bytes.len().min(len - done);
                match put(done, &mut bytes[..fits]) {
                    Ok(()) => (fits, Ok(fits)),
                    Err(error) => (0, Err(error)),
                }
            });
            match written.unwrap_or(Err(Error::BrokenPipe)) {
                Ok(count) => done += count,
                Err(error) => failed = Some(error),
            }
        }
        drop(endpoint);
        requests().add_work(index, level());
        match failed {
            Some(error) if done == 0 => Some(Err(error)),
            _ => Some(Ok(done)),
        }
    }
}
