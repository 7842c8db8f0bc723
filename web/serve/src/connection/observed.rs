//! The I/O of a connection, as the HTTP library sees it: reads and writes are noted in the clocks
//! of the connection, and HTTP/2 frames that open streams or set priorities are inspected before
//! the library receives them.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::StatusCode;
use hyper::rt::{Read, ReadBufCursor, Write};

use crate::connection::clocks::NEXT_REQUEST;
use crate::connection::conn::Conn;
use crate::connection::frames::{FrameEvent, Frames};
use crate::connection::transport::Transport;
use crate::connection::{direct, heads};
use crate::request::priority::Urgency;

/// Bytes of HTTP/2 that are read between two readings of the clock: 455 frames at most.
const PIECE: usize = 4096;

/// A connection's I/O, observed.
pub(super) struct ObservedIo<I> {
    io: I,
    conn: Arc<Conn>,
    speaks: Speaks,
    /// Bytes received from the socket at the last reading.
    received: u64,
    /// Wait for the client to close.
    patience: Option<Patience>,
    /// Bytes of the connection's first file that could not be sent without being read.
    read: Bytes,
    /// Set while the connection waits for a file, and not for the client.
    reads: bool,
}

/// The state of reading.
enum Speaks {
    One(One),
    Two(Box<Two>),
}

struct Patience {
    wait: Pin<Box<upshift::time::Sleep>>,
    /// Bytes that the client had not taken when the wait began.
    unsent: Option<usize>,
}

#[derive(Default)]
struct One {
    /// Last answer, if it does not come from the library, which then reads no more.
    refusal: Option<Bytes>,
    /// Set when the client has closed its sending half.
    ended: bool,
    /// Set while the library does not know of the end: it would not send the remaining answers.
    hidden: bool,
}

struct Two {
    frames: Frames,
    /// Set while a received request has to be handed out before anything else is read.
    stop: bool,
    /// Frame that ends the connection: the library reads it next, in place of the client's bytes.
    wrong: &'static [u8],
}

impl<I> ObservedIo<I> {
    pub(super) fn new(io: I, conn: Arc<Conn>, two: bool) -> ObservedIo<I> {
        let speaks = if two {
            Speaks::Two(Box::new(Two {
                frames: Frames::new(),
                stop: false,
                wrong: &[],
            }))
        } else {
            Speaks::One(One::default())
        };
        ObservedIo {
            io,
            conn,
            speaks,
            received: 0,
            patience: None,
            read: Bytes::new(),
            reads: false,
        }
    }

    /// Creates the I/O of an HTTP/1 connection that gets this answer and no other.
    pub(super) fn refused(io: I, conn: Arc<Conn>, answer: Bytes) -> ObservedIo<I> {
        let mut this = ObservedIo::new(io, conn, false);
        this.speaks = Speaks::One(One {
            refusal: Some(answer),
            ..One::default()
        });
        this
    }
}

impl Two {
    /// Passes on the client's bytes and inspects them.
    fn read<I: Transport>(
        &mut self,
        io: &mut I,
        conn: &Conn,
        cx: &mut Context<'_>,
        room: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let streams = &conn.streams;
        // The library reads again, so it has handed out the request before.
        let stops = mem::take(&mut self.stop);
        streams.stops(stops);
        if stops {
            return Poll::Pending;
        }
        if !self.wrong.is_empty() {
            let count = self.wrong.len().min(room.remaining());
            let (now, later) = self.wrong.split_at(count);
            room.put_slice(now);
            self.wrong = later;
            return Poll::Ready(Ok(()));
        }
        ready!(io.poll_read_on(cx));
        let data = ready!(io.poll_fill(cx))?;
        let data = &data[..data.len().min(room.remaining()).min(PIECE)];
        let mut flood = false;
        let count = self.frames.look(data, |heard| match heard {
            FrameEvent::Opened(number) => {
                streams.opened(number);
                self.stop = true;
            }
            FrameEvent::Update(number, field) => update(conn, number, field),
            FrameEvent::Flood => flood = true,
            FrameEvent::Wrong(frame) => self.wrong = frame,
        });
        if flood {
            let why = "requests are given up as fast as they are made";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        room.put_slice(&data[..count]);
        io.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl One {
    /// Passes on the client's bytes. Its end of file means that the client is gone, unless its
    /// request is answered in any case.
    fn read<I: Transport>(
        &mut self,
        io: &mut I,
        conn: &Conn,
        cx: &mut Context<'_>,
        room: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ended && self.refusal.is_none() {
            ready!(io.poll_read_on(cx));
            let data = ready!(io.poll_fill(cx))?;
            let data = &data[..data.len().min(room.remaining())];
            let count = data.len();
            if conn.clocks.received() && heads::has_unknown_coding(data) {
                let refusal = heads::refusal(StatusCode::NOT_IMPLEMENTED, heads::UNKNOWN_CODING);
                self.refusal = Some(refusal);
                self.hidden = true;
            } else {
                room.put_slice(data);
                self.ended = count == 0;
                self.hidden = self.ended && conn.clocks.is_answered();
            }
            io.consume(count);
        }
        if self.hidden {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the last answer, if it does not come from the library.
    fn poll_refusal<I: Transport>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(rest) = self.refusal.as_mut().filter(|rest| !rest.is_empty()) {
            let count = ready!(Pin::new(&mut *io).poll_write(cx, rest))?;
            rest.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

/// Applies the priority that a client sets for a stream: its request takes the level that follows,
/// or the priority is saved until the request arrives.
fn update(conn: &Conn, number: u32, field: &[u8]) {
    let Ok(field) = str::from_utf8(field) else {
        return;
    };
    if !conn.streams.may_update() {
        return;
    }
    let urgency = Urgency::parse(field);
    let Some(entry) = conn.in_flight.of_stream(number) else {
        conn.streams.keep(number, urgency);
        return;
    };
    let live = conn.shared.live();
    let urgency = live.granted(urgency);
    entry.asks(urgency, urgency.level());
    let level = live.rule_again(&entry.facts).unwrap_or(urgency.level());
    conn.in_flight.reprio(&conn.shared.runtime, |one| {
        std::ptr::eq(one, &*entry).then_some(level)
    });
}

impl<I: Transport> Read for ObservedIo<I> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let result = match &mut this.speaks {
            Speaks::One(one) => one.read(&mut this.io, &this.conn, cx, &mut room),
            Speaks::Two(two) => two.read(&mut this.io, &this.conn, cx, &mut room),
        };
        let received = this.io.received();
        if received != this.received {
            this.conn.clocks.arrived(received - this.received);
            this.received = received;
        }
        result
    }
}

impl<I: Transport> ObservedIo<I> {
    /// Sends at most `most` bytes of the connection's first file, without a copy if possible.
    fn poll_file(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        let cut_short = || Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        self.reads = false;
        let mut files = self.conn.direct.files();
        let Some(file) = files.front_mut() else {
            return cut_short();
        };
        let count = loop {
            if !self.read.is_empty() {
                let piece = &self.read[..self.read.len().min(most)];
                let count = ready!(Pin::new(&mut self.io).poll_write(cx, piece))?;
                self.read.advance(count);
                break count;
            }
            if let Some((fd, at)) = file.uncopied() {
                match ready!(self.io.poll_send_file(cx, fd, at, most))? {
                    Some(0) => return cut_short(),
                    Some(count) => {
                        file.skip(count);
                        break count;
                    }
                    None => file.is_copied(),
                }
            }
            let chunk = file.poll_chunk(cx);
            self.reads = chunk.is_pending();
            match ready!(chunk) {
                Some(bytes) => self.read = bytes?,
                None => return cut_short(),
            }
        };
        if file.left() == 0 && self.read.is_empty() {
            files.pop_front();
        }
        Poll::Ready(Ok(count))
    }

    /// Continues to read after the last byte was sent, until the client closes or takes nothing for
    /// [`NEXT_REQUEST`]. Bytes that arrive for a closed socket, such as a WINDOW_UPDATE or the rest
    /// of a body, make the kernel send a reset, which discards all bytes that the client has not
    /// received.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self
            .patience
            .as_mut()
            .is_none_or(|patience| patience.wait.as_mut().poll(cx).is_ready())
        {
            let unsent = self.conn.unsent();
            if let Some(patience) = &self.patience
                && (unsent == patience.unsent || unsent == Some(0))
            {
                return Poll::Ready(());
            }
            let wait = Box::pin(upshift::time::sleep(NEXT_REQUEST));
            self.patience = Some(Patience { wait, unsent });
        }
        loop {
            ready!(self.io.poll_read_on(cx));
            match ready!(self.io.poll_fill(cx)) {
                Ok(data) if !data.is_empty() => {
                    let count = data.len();
                    self.io.consume(count);
                }
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<I: Transport> Write for ObservedIo<I> {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let file = pieces
            .iter()
            .position(|piece| direct::is_placeholder(piece));
        let result = match file {
            None => Pin::new(&mut this.io).poll_write_vectored(cx, pieces),
            Some(0) => this.poll_file(cx, pieces[0].len()),
            Some(at) => this.io.poll_send_before(cx, &pieces[..at]),
        };
        // A wait for the file's device is no wait for the client.
        this.conn.clocks.wrote(result.is_pending() && !this.reads);
        if let (Speaks::Two(_), Poll::Ready(Ok(bytes))) = (&this.speaks, &result) {
            this.conn.sending.wrote(*bytes);
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let result = Pin::new(&mut this.io).poll_flush(cx);
        this.conn.clocks.wrote(result.is_pending());
        // The library flushes when it has written the whole answer.
        if let Speaks::One(one) = &mut this.speaks
            && one.hidden
            && result.is_ready()
            && this.conn.clocks.is_between()
        {
            one.hidden = false;
            cx.waker().wake_by_ref();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.patience.is_none() {
            let mut sent = Poll::Ready(Ok(()));
            if let Speaks::One(one) = &mut this.speaks {
                sent = one.poll_refusal(&mut this.io, cx);
            }
            if let Poll::Ready(Ok(())) = sent {
                sent = Pin::new(&mut this.io).poll_shutdown(cx);
            }
            this.conn.clocks.wrote(sent.is_pending());
            ready!(sent)?;
        }
        let waits = match &this.speaks {
            Speaks::One(one) => !one.ended && this.conn.clocks.is_sending(),
            Speaks::Two(_) => this.conn.shared.is_draining(),
        };
        if waits {
            ready!(this.poll_closed(cx));
        }
        Poll::Ready(Ok(()))
    }
}
