//! The I/O of a connection, as hyper sees it. Reads and writes update the clocks of the connection.
//! HTTP/2 frames are scanned before hyper receives them.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::StatusCode;
use hyper::rt::{Read, ReadBufCursor, Write};

use crate::connection::clocks::REQUEST_GRACE;
use crate::connection::conn::Conn;
use crate::connection::frames::{FrameEvent, FrameScanner};
use crate::connection::transport::Transport;
use crate::connection::{heads, send_file};
use crate::request::priority::Urgency;

/// Largest number of bytes of HTTP/2 that are read at once. They contain at most 455 frames.
const PIECE: usize = 4096;

pub(super) struct ObservedIo<I> {
    io: I,
    conn: Arc<Conn>,
    protocol: Protocol,
    received: u64,
    /// Set while the connection *lingers*, that is, has sent its last byte and waits for the client
    /// to close.
    linger: Option<Linger>,
    /// Bytes of the first queued file that were read because they could not be sent without a copy.
    file_bytes: Bytes,
    waits_for_file: bool,
}

enum Protocol {
    Http1(Http1Reader),
    Http2(Box<Http2Reader>),
}

struct Linger {
    timer: Pin<Box<upshift::time::Sleep>>,
    /// Bytes that the client had not taken when the wait began.
    unsent: Option<usize>,
}

#[derive(Default)]
struct Http1Reader {
    /// Last response, if it is not one of hyper's. hyper then reads nothing more.
    refusal: Option<Bytes>,
    eof: bool,
    /// Set while the end of file is hidden from hyper, which would otherwise not send the remaining
    /// responses.
    eof_hidden: bool,
}

struct Http2Reader {
    frames: FrameScanner,
    /// Set while a received request must be handed out before anything else is read.
    stopped: bool,
    /// Rest of the frame that ends the connection; hyper reads it instead of the client's bytes.
    error_frame: &'static [u8],
}

impl<I> ObservedIo<I> {
    pub(super) fn new(io: I, conn: Arc<Conn>, is_http2: bool) -> ObservedIo<I> {
        let protocol = if is_http2 {
            Protocol::Http2(Box::new(Http2Reader {
                frames: FrameScanner::new(),
                stopped: false,
                error_frame: &[],
            }))
        } else {
            Protocol::Http1(Http1Reader::default())
        };
        ObservedIo {
            io,
            conn,
            protocol,
            received: 0,
            linger: None,
            file_bytes: Bytes::new(),
            waits_for_file: false,
        }
    }

    /// Creates the I/O of an HTTP/1 connection that gets only this response.
    pub(super) fn refused(io: I, conn: Arc<Conn>, answer: Bytes) -> ObservedIo<I> {
        let mut this = ObservedIo::new(io, conn, false);
        this.protocol = Protocol::Http1(Http1Reader {
            refusal: Some(answer),
            ..Http1Reader::default()
        });
        this
    }
}

impl Http2Reader {
    fn read<I: Transport>(
        &mut self,
        io: &mut I,
        conn: &Conn,
        cx: &mut Context<'_>,
        buf: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let streams = &conn.streams;
        // The first read after the head of a request returns `Pending`, so that hyper hands out the
        // request. `Conn::after_poll` then has the connection polled again.
        let stopped = mem::take(&mut self.stopped);
        streams.set_stopped(stopped);
        if stopped {
            return Poll::Pending;
        }
        if !self.error_frame.is_empty() {
            let count = self.error_frame.len().min(buf.remaining());
            let (now, later) = self.error_frame.split_at(count);
            buf.put_slice(now);
            self.error_frame = later;
            return Poll::Ready(Ok(()));
        }
        ready!(io.poll_next_read(cx));
        let data = ready!(io.poll_fill(cx))?;
        let data = &data[..data.len().min(buf.remaining()).min(PIECE)];
        let mut is_flood = false;
        let count = self.frames.scan(data, |event| match event {
            FrameEvent::Opened(number) => {
                streams.note_opened(number);
                self.stopped = true;
            }
            FrameEvent::Update(number, field) => apply_update(conn, number, field),
            FrameEvent::Flood => is_flood = true,
            FrameEvent::Invalid(frame) => self.error_frame = frame,
        });
        if is_flood {
            let reason = "too many cancelled requests";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
        }
        buf.put_slice(&data[..count]);
        io.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl Http1Reader {
    /// Reads into `buf`. To hyper, an end of file means that the client has gone. So the end of
    /// file is hidden while a request is in progress that is answered even then.
    fn read<I: Transport>(
        &mut self,
        io: &mut I,
        conn: &Conn,
        cx: &mut Context<'_>,
        buf: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.eof && self.refusal.is_none() {
            ready!(io.poll_next_read(cx));
            let data = ready!(io.poll_fill(cx))?;
            let data = &data[..data.len().min(buf.remaining())];
            let count = data.len();
            if conn.clocks.note_read() && heads::has_unknown_coding(data) {
                let refusal = heads::refusal(StatusCode::NOT_IMPLEMENTED, heads::UNKNOWN_CODING);
                self.refusal = Some(refusal);
                self.eof_hidden = true;
            } else {
                buf.put_slice(data);
                self.eof = count == 0;
                self.eof_hidden = self.eof && conn.clocks.answers_after_eof();
            }
            io.consume(count);
        }
        if self.eof_hidden {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the response that ends the connection, if this server and not hyper has created one.
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

/// Applies the priority that a client sets for a stream to its request, or saves it until the
/// request arrives.
fn apply_update(conn: &Conn, number: u32, field: &[u8]) {
    let Ok(field) = str::from_utf8(field) else {
        return;
    };
    if !conn.streams.count_update() {
        return;
    }
    let urgency = Urgency::parse(field);
    let Some(entry) = conn.in_flight.find_stream(number) else {
        conn.streams.save_update(number, urgency);
        return;
    };
    let settings = conn.shared.settings();
    let urgency = settings.clamped(urgency);
    entry.set_urgency(urgency, urgency.level());
    let level = settings
        .current_rule_for(&entry.facts)
        .unwrap_or(urgency.level());
    conn.in_flight.reprio(&conn.shared.runtime, |other| {
        std::ptr::eq(other, &*entry).then_some(level)
    });
}

impl<I: Transport> Read for ObservedIo<I> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let result = match &mut this.protocol {
            Protocol::Http1(http1) => http1.read(&mut this.io, &this.conn, cx, &mut buf),
            Protocol::Http2(http2) => http2.read(&mut this.io, &this.conn, cx, &mut buf),
        };
        let received = this.io.received();
        if received != this.received {
            this.conn.clocks.note_body_bytes(received - this.received);
            this.received = received;
        }
        result
    }
}

impl<I: Transport> ObservedIo<I> {
    fn poll_file(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<usize>> {
        let cut_short = || Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        self.waits_for_file = false;
        let mut files = self.conn.send_files.files();
        let Some(file) = files.front_mut() else {
            return cut_short();
        };
        let count = loop {
            if !self.file_bytes.is_empty() {
                let piece = &self.file_bytes[..self.file_bytes.len().min(max)];
                let count = ready!(Pin::new(&mut self.io).poll_write(cx, piece))?;
                self.file_bytes.advance(count);
                break count;
            }
            if let Some((fd, offset)) = file.send_file_source() {
                match ready!(self.io.poll_send_file(cx, fd, offset, max))? {
                    Some(0) => return cut_short(),
                    Some(count) => {
                        file.advance(count);
                        break count;
                    }
                    None => file.disable_send_file(),
                }
            }
            let chunk = file.poll_chunk(cx);
            self.waits_for_file = chunk.is_pending();
            match ready!(chunk) {
                Some(bytes) => self.file_bytes = bytes?,
                None => return cut_short(),
            }
        };
        if file.left() == 0 && self.file_bytes.is_empty() {
            files.pop_front();
        }
        Poll::Ready(Ok(count))
    }

    /// Reads and discards bytes after the last byte was sent, until the client closes or takes
    /// nothing for [`REQUEST_GRACE`]. Bytes that arrive for a closed socket, such as a
    /// WINDOW_UPDATE or the rest of a body, make the kernel send a reset, which discards all bytes
    /// that the client has not received.
    fn poll_lingering_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self
            .linger
            .as_mut()
            .is_none_or(|linger| linger.timer.as_mut().poll(cx).is_ready())
        {
            let unsent = self.conn.unsent();
            if let Some(linger) = &self.linger
                && (unsent == linger.unsent || unsent == Some(0))
            {
                return Poll::Ready(());
            }
            let timer = Box::pin(upshift::time::sleep(REQUEST_GRACE));
            self.linger = Some(Linger { timer, unsent });
        }
        loop {
            ready!(self.io.poll_next_read(cx));
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
            .position(|piece| send_file::is_placeholder(piece));
        let result = match file {
            None => Pin::new(&mut this.io).poll_write_vectored(cx, pieces),
            Some(0) => this.poll_file(cx, pieces[0].len()),
            Some(index) => this.io.poll_send_before(cx, &pieces[..index]),
        };
        // A wait for the file's device is not a wait for the client.
        this.conn
            .clocks
            .note_write(result.is_pending() && !this.waits_for_file);
        if let (Protocol::Http2(_), Poll::Ready(Ok(bytes))) = (&this.protocol, &result) {
            this.conn.sending.note_write(*bytes);
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
        this.conn.clocks.note_write(result.is_pending());
        // hyper flushes after the whole response.
        if let Protocol::Http1(http1) = &mut this.protocol
            && http1.eof_hidden
            && result.is_ready()
            && this.conn.clocks.awaits_head()
        {
            http1.eof_hidden = false;
            cx.waker().wake_by_ref();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            let mut result = Poll::Ready(Ok(()));
            if let Protocol::Http1(http1) = &mut this.protocol {
                result = http1.poll_refusal(&mut this.io, cx);
            }
            if let Poll::Ready(Ok(())) = result {
                result = Pin::new(&mut this.io).poll_shutdown(cx);
            }
            this.conn.clocks.note_write(result.is_pending());
            ready!(result)?;
        }
        let must_linger = match &this.protocol {
            Protocol::Http1(http1) => !http1.eof && this.conn.clocks.may_be_sending(),
            Protocol::Http2(_) => this.conn.shared.is_draining(),
        };
        if must_linger {
            ready!(this.poll_lingering_close(cx));
        }
        Poll::Ready(Ok(()))
    }
}
