//! One connection: how many requests it is to send, has sent and has had answered.
//!
//! `answered <= started <= due` always. Between them: `due - started` requests wait for room, `started - answered` are
//! in flight, and the last `owed` bytes of those have not been taken by the socket. Requests repeat the template, so
//! what is to be written next follows from `offset` alone.

use super::reply::{Cursor, Template};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;

pub(crate) struct Connection {
    /// None once it has failed.
    pub(crate) stream: Option<TcpStream>,
    pub(crate) group: usize,
    /// Its place in its group.
    pub(crate) index: usize,
    pub(crate) template: usize,
    pub(crate) due: u64,
    pub(crate) started: u64,
    pub(crate) answered: u64,
    owed: usize,
    offset: usize,
    pub(crate) cursor: Cursor,
    /// When bytes last arrived, or a request left an idle connection.
    pub(crate) since: u64,
    /// Closed loop: when the requests in flight were written.
    pub(crate) sent_at: VecDeque<u64>,
}

impl Connection {
    pub(crate) fn new(
        stream: Option<TcpStream>,
        group: usize,
        index: usize,
        template: usize,
    ) -> Connection {
        Connection {
            stream,
            group,
            index,
            template,
            due: 0,
            started: 0,
            answered: 0,
            owed: 0,
            offset: 0,
            cursor: Cursor::default(),
            since: 0,
            sent_at: VecDeque::new(),
        }
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.started - self.answered
    }

    /// Another request could be written at once.
    pub(crate) fn is_free(&self, depth: u64) -> bool {
        self.owed == 0 && self.in_flight() < depth
    }

    /// Starts the requests that are due, up to `depth` in flight; returns how many. [`flush`](Self::flush) writes them.
    pub(crate) fn start(&mut self, template: &Template, depth: u64, now: u64) -> u64 {
        let room = depth.saturating_sub(self.in_flight());
        let count = room.min(self.due - self.started);
        if count > 0 {
            if self.in_flight() == 0 {
                self.since = now;
            }
            self.started += count;
            self.owed += count as usize * template.len;
        }
        count
    }

    /// Writes what is owed, as far as the socket takes it.
    pub(crate) fn flush(&mut self, template: &Template) -> io::Result<()> {
        let Some(mut stream) = self.stream.as_ref() else {
            return Ok(());
        };
        while self.owed > 0 {
            let end = template.bytes.len().min(self.offset + self.owed);
            match stream.write(&template.bytes[self.offset..end]) {
                Ok(n) => {
                    self.owed -= n;
                    self.offset = (self.offset + n) % template.len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
