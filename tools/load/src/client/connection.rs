//! One connection of the client: its queue of requests, and the bytes that the socket has not yet
//! taken.
//!
//! `requests` contains the oldest request first. The first `started` requests have been sent or are
//! being sent, and some of them may already be answered (`answered_early`); the other requests wait
//! for room. In most protocols, replies arrive in the order of the requests. A spin reply names its
//! request by a tag, the number of earlier requests of the connection. That request is marked as
//! answered, and leaves the queue when it is the oldest, so each reply costs O(1) in any order.

use super::arrivals::Request;
use super::reply::{Cursor, Template};
use crate::spin::{self, Frames};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;

pub(crate) struct Connection {
    pub(crate) stream: Option<TcpStream>,
    pub(crate) group: usize,
    pub(crate) template: usize,
    /// Time at which bytes last arrived, or a request left an idle connection, in ns.
    pub(crate) since: u64,
    pub(crate) cursor: Cursor,
    pub(crate) frames: Frames,
    pub(crate) has_replied: bool,
    requests: VecDeque<Request>,
    started: usize,
    /// Number of started requests that were answered before an older request was.
    answered_early: usize,
    /// Tag of `requests[0]`: the number of requests that have left the queue.
    oldest_tag: u64,
    /// Number of bytes that the socket has not taken, in the copies of the template or in `out`.
    unsent: usize,
    /// Position of the first unsent byte in the template or in `out`.
    offset: usize,
    out: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: Option<TcpStream>, group: usize, template: usize) -> Connection {
        Connection {
            stream,
            group,
            template,
            since: 0,
            cursor: Cursor::default(),
            frames: Frames::default(),
            has_replied: false,
            requests: VecDeque::new(),
            started: 0,
            answered_early: 0,
            oldest_tag: 0,
            unsent: 0,
            offset: 0,
            out: Vec::new(),
        }
    }

    /// Returns the number of started requests without a reply.
    pub(crate) fn in_flight(&self) -> usize {
        self.started - self.answered_early
    }

    /// Returns the number of requests without a reply, sent or not.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len() - self.answered_early
    }

    /// Returns whether another request could be written at once.
    pub(crate) fn is_free(&self, depth: usize) -> bool {
        self.unsent == 0 && self.in_flight() < depth
    }

    pub(crate) fn push(&mut self, request: Request) {
        self.requests.push_back(request);
    }

    /// Starts waiting requests until `depth` are in flight. [`flush`](Self::flush) writes them.
    pub(crate) fn start(&mut self, template: Option<&Template>, depth: usize, now: u64) {
        while self.started < self.requests.len() && self.in_flight() < depth {
            if self.in_flight() == 0 {
                self.since = now;
            }
            self.unsent += match template {
                Some(template) => template.len,
                None => {
                    let request = &self.requests[self.started];
                    let frame = spin::Request {
                        service: request.service,
                        level: request.level,
                        tag: self.oldest_tag.wrapping_add(self.started as u64),
                    };
                    self.out.extend_from_slice(&frame.bytes());
                    spin::FRAME
                }
            };
            self.started += 1;
        }
    }

    /// Writes the unsent bytes until the socket takes no more.
    pub(crate) fn flush(&mut self, template: Option<&Template>) -> io::Result<()> {
        let Some(mut stream) = self.stream.as_ref() else {
            return Ok(());
        };
        while self.unsent > 0 {
            let bytes = template.map_or(&self.out, |template| &template.bytes);
            let end = bytes.len().min(self.offset + self.unsent);
            match stream.write(&bytes[self.offset..end]) {
                Ok(n) => {
                    self.unsent -= n;
                    self.offset += n;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(template) = template {
                self.offset %= template.len;
            }
        }
        if template.is_none() {
            self.out.drain(..self.offset);
            self.offset = 0;
        }
        Ok(())
    }

    /// Takes the oldest request in flight, whose reply is complete.
    pub(crate) fn take_oldest(&mut self) -> Option<Request> {
        if self.started == 0 {
            return None;
        }
        self.started -= 1;
        self.oldest_tag = self.oldest_tag.wrapping_add(1);
        self.requests.pop_front()
    }

    /// Takes the request in flight that the spin reply answers.
    pub(crate) fn take_by_tag(&mut self, reply: &spin::Request) -> Option<Request> {
        let index = usize::try_from(reply.tag.wrapping_sub(self.oldest_tag)).ok()?;
        let request = self
            .requests
            .get_mut(index)
            .filter(|_| index < self.started)?;
        if request.answered || (request.service, request.level) != (reply.service, reply.level) {
            return None;
        }
        request.answered = true;
        let answered = *request;
        self.answered_early += 1;
        while self.requests.front().is_some_and(|oldest| oldest.answered) {
            self.take_oldest();
            self.answered_early -= 1;
        }
        Some(answered)
    }

    /// Removes the requests that have not been started.
    pub(crate) fn drop_unstarted(&mut self) {
        self.requests.truncate(self.started);
    }

    /// Removes all requests.
    pub(crate) fn clear(&mut self) {
        (self.started, self.answered_early) = (0, 0);
        self.requests.clear();
    }

    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| !request.answered)
    }
}
