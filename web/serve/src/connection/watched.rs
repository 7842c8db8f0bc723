//! The I/O of a connection, on its way to the HTTP library: what is read and written is noted in [`Conn`], and frames of HTTP/2 that
//! open streams or say how urgent they are are looked at before the library has them.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::rt::{Read, ReadBufCursor, Write};

use crate::connection::Conn;
use crate::connection::conversation::NEXT_REQUEST;
use crate::connection::direct::{self, SendFile};
use crate::connection::frames::{Frames, Heard};
use crate::connection::heads::Heads;
use crate::connection::lend::Fill;
use crate::files::{Reading, asked_in_vain, read_later, read_now};
use crate::request::priority::Urgency;
use crate::server::shared::Shared;

/// What is read of HTTP/2 between two looks at the clock: 455 frames at most.
const PIECE: usize = 4096;

/// A connection's I/O, watched.
pub(crate) struct Watched<I> {
    io: I,
    conn: Arc<Conn>,
    /// Present in HTTP/1.
    one: Option<Box<One>>,
    /// Present in HTTP/2.
    two: Option<Box<Two>>,
    /// Bytes that had come from the socket at the last look.
    received: u64,
    /// Ends the wait for the client to close.
    patience: Option<Pin<Box<upshift::time::Sleep>>>,
    /// Bytes that the client had not taken when that wait began.
    unsent: Option<usize>,
    /// Of the piece of a file that is being sent, what had to be read.
    read: Bytes,
    reading: Option<Reading>,
}

struct One {
    heads: Heads,
    /// An answer that is sent in place of the library's.
    instead: Option<Bytes>,
    /// The client sends nothing any more.
    ended: bool,
    /// The library learns of the end when the answer is sent: it would not send the rest.
    hidden: bool,
}

struct Two {
    shared: Arc<Shared>,
    frames: Frames,
    /// A request has been received that is to be handed out before anything else is read.
    stop: bool,
    /// A frame that ends the connection: the library reads it next, in place of the client's.
    wrong: &'static [u8],
}

impl<I> Watched<I> {
    /// Watches a connection of HTTP/1, with heads of so many bytes at most.
    pub(crate) fn one(io: I, conn: Arc<Conn>, header_bytes: usize) -> Watched<I> {
        let one = One {
            heads: Heads::new(header_bytes),
            instead: None,
            ended: false,
            hidden: false,
        };
        Watched {
            io,
            conn,
            one: Some(Box::new(one)),
            two: None,
            received: 0,
            patience: None,
            unsent: None,
            read: Bytes::new(),
            reading: None,
        }
    }

    pub(crate) fn two(io: I, conn: Arc<Conn>, shared: Arc<Shared>) -> Watched<I> {
        let two = Two {
            shared,
            frames: Frames::new(),
            stop: false,
            wrong: &[],
        };
        Watched {
            io,
            conn,
            one: None,
            two: Some(Box::new(two)),
            received: 0,
            patience: None,
            unsent: None,
            read: Bytes::new(),
            reading: None,
        }
    }
}

impl Two {
    /// Passes on what has come, and takes note.
    fn read<I: Fill>(
        &mut self,
        io: &mut I,
        conn: &Conn,
        cx: &mut Context<'_>,
        room: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let streams = &conn.streams;
        // The library reads on, so it has handed out what there was.
        streams.stopped.store(false, Relaxed);
        if mem::take(&mut self.stop) {
            streams.stopped.store(true, Relaxed);
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
            Heard::Opened(number) => {
                streams.opened(number);
                self.stop = true;
            }
            Heard::Update(number, field) => update(&self.shared, conn, number, field),
            Heard::Flood => flood = true,
            Heard::Wrong(frame) => self.wrong = frame,
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
    /// Passes on bytes of the client, which is taken for gone at its end of file, unless its
    /// request is answered in any case.
    fn read<I: Fill>(
        &mut self,
        io: &mut I,
        conn: &Conn,
        cx: &mut Context<'_>,
        room: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ended {
            ready!(io.poll_read_on(cx));
            let data = ready!(io.poll_fill(cx))?;
            let data = &data[..data.len().min(room.remaining())];
            if conn.is_between() {
                if conn.received() {
                    self.heads.begin();
                }
                self.heads.look(data);
            }
            room.put_slice(data);
            let count = data.len();
            io.consume(count);
            self.ended = count == 0;
            self.hidden = self.ended && conn.is_answered();
        }
        if self.hidden {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends another answer in place of the library's, if there is a better one.
    fn poll_instead<I: Write + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<Option<usize>>> {
        if self.instead.is_none() {
            self.instead = pieces.first().and_then(|piece| self.heads.instead(piece));
        }
        let Some(instead) = &mut self.instead else {
            return Poll::Ready(Ok(None));
        };
        while !instead.is_empty() {
            let count = ready!(Pin::new(&mut *io).poll_write(cx, instead))?;
            instead.advance(count);
        }
        self.instead = None;
        let count = pieces.iter().map(|piece| piece.len()).sum();
        Poll::Ready(Ok(Some(count)))
    }
}

/// The client says how urgent a stream is: its request gets the level that follows from it, or it is kept until the request comes.
fn update(shared: &Shared, conn: &Conn, number: u32, field: &[u8]) {
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
    let live = shared.live();
    let urgency = live.granted(urgency);
    entry.asks(urgency, urgency.level());
    let level = live.rule_again(&entry.facts).unwrap_or(urgency.level());
    conn.in_flight.reprio(&shared.runtime, |one| {
        std::ptr::eq(one, &*entry).then_some(level)
    });
}

impl<I: Read + Fill + Unpin> Read for Watched<I> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let result = match (&mut this.two, &mut this.one) {
            (Some(two), _) => two.read(&mut this.io, &this.conn, cx, &mut room),
            (None, Some(one)) => one.read(&mut this.io, &this.conn, cx, &mut room),
            (None, None) => Pin::new(&mut this.io).poll_read(cx, room),
        };
        let received = this.io.received();
        if received != this.received {
            this.conn.arrived(received - this.received);
            this.received = received;
        }
        result
    }
}

impl<I> Watched<I> {
    #[inline]
    fn has_written(&self, result: &Poll<io::Result<usize>>) {
        // The device is not the client.
        self.conn
            .wrote(result.is_pending() && self.reading.is_none());
        if let (Some(_), Poll::Ready(Ok(bytes))) = (&self.two, result) {
            self.conn.sending.wrote(*bytes);
        }
    }
}

impl<I: Write + SendFile + Unpin> Watched<I> {
    /// Sends of a file what these bytes stand for.
    fn poll_file(&mut self, cx: &mut Context<'_>, stand_in: &[u8]) -> Poll<io::Result<usize>> {
        let direct = &self.conn.direct;
        let piece = direct.piece_of(stand_in)?;
        loop {
            if !self.read.is_empty() {
                let count = ready!(Pin::new(&mut self.io).poll_write(cx, &self.read))?;
                self.read.advance(count);
                direct.sent(&piece, count);
                return Poll::Ready(Ok(count));
            }
            if let Some(reading) = &mut self.reading {
                let read = ready!(reading.as_mut().poll(cx));
                self.reading = None;
                self.read = read?;
                continue;
            }
            let (at, left) = piece.rest();
            match ready!(self.io.poll_send_file(cx, piece.fd(), at, left))? {
                Some(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Some(count) => {
                    direct.sent(&piece, count);
                    return Poll::Ready(Ok(count));
                }
                None => {
                    piece.end_source();
                    asked_in_vain();
                    match read_now(piece.file(), at, left as u64)? {
                        Some(bytes) => self.read = bytes,
                        None => {
                            let file = upshift::fs::File::from_std(piece.file().try_clone()?);
                            self.reading = Some(Box::pin(read_later(file, at, left as u64)));
                        }
                    }
                }
            }
        }
    }
}

impl<I: Fill> Watched<I> {
    /// Reads on after the last byte was sent, until the client closes, or takes nothing for
    /// [`NEXT_REQUEST`]. Anything that arrives for a closed socket, such as a WINDOW_UPDATE or the
    /// rest of a body, makes the kernel send a reset, which discards all bytes that the client has
    /// not received.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self
            .patience
            .as_mut()
            .is_none_or(|wait| wait.as_mut().poll(cx).is_ready())
        {
            let unsent = self.conn.unsent();
            if self.patience.is_some() && (unsent == self.unsent || unsent == Some(0)) {
                return Poll::Ready(());
            }
            self.unsent = unsent;
            self.patience = Some(Box::pin(upshift::time::sleep(NEXT_REQUEST)));
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

impl<I: Write + Fill + SendFile + Unpin> Write for Watched<I> {
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
        if this.conn.direct.is_broken() {
            return Poll::Ready(Err(direct::out_of_order()));
        }
        if let Some(one) = &mut this.one
            && let Some(count) = ready!(one.poll_instead(&mut this.io, cx, pieces))?
        {
            return Poll::Ready(Ok(count));
        }
        let result = match pieces.iter().position(|piece| direct::stands_in(piece)) {
            None => Pin::new(&mut this.io).poll_write_vectored(cx, pieces),
            Some(0) => this.poll_file(cx, &pieces[0]),
            Some(at) => this.io.poll_send_before(cx, &pieces[..at]),
        };
        this.has_written(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let result = Pin::new(&mut this.io).poll_flush(cx);
        this.conn.wrote(result.is_pending());
        // The library flushes when it has written all of the answer.
        if let Some(one) = &mut this.one
            && one.hidden
            && result.is_ready()
            && this.conn.is_between()
        {
            one.hidden = false;
            cx.waker().wake_by_ref();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.patience.is_none() {
            let result = Pin::new(&mut this.io).poll_shutdown(cx);
            this.conn.wrote(result.is_pending());
            ready!(result)?;
        }
        let waits = match (&this.one, &this.two) {
            (Some(one), _) => !one.ended && this.conn.is_sending(),
            (_, Some(two)) => two.shared.is_draining(),
            _ => false,
        };
        if waits {
            ready!(this.poll_closed(cx));
        }
        Poll::Ready(Ok(()))
    }
}
