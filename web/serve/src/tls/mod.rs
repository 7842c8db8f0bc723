//! TLS by rustls, for the I/O traits of hyper.
//!
//! rustls has its own buffers of records. Received bytes are decrypted there and copied out.
//! Written bytes are encrypted there and passed to the connection below in pieces of up to 64 KiB.

use std::io::{self, BufRead, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use rustls::{ServerConfig, ServerConnection};
use upshift::hyper::Io;

use crate::connection::client::Tls;
use crate::connection::transport::Transport;

pub(crate) mod certificates;

pub(crate) struct TlsIo {
    io: Io,
    tls: Box<ServerConnection>,
    /// Bytes that were received but not passed to rustls, which accepts no more until its plaintext
    /// has been read.
    undecrypted: Vec<u8>,
    /// Encrypted bytes, the first `sent` of which the connection below has taken.
    encrypted: Vec<u8>,
    sent: usize,
}

impl TlsIo {
    pub(crate) async fn accept(io: Io, config: Arc<ServerConfig>) -> io::Result<TlsIo> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut this = TlsIo {
            io,
            tls: Box::new(tls),
            undecrypted: Vec::new(),
            encrypted: Vec::new(),
            sent: 0,
        };
        std::future::poll_fn(|cx| {
            loop {
                ready!(this.poll_send(cx))?;
                if !this.tls.is_handshaking() {
                    return Poll::Ready(io::Result::Ok(()));
                }
                if ready!(this.poll_receive(cx))? == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        })
        .await?;
        Ok(this)
    }

    pub(crate) fn handshake_info(&self) -> Tls {
        let version = self.tls.protocol_version();
        let protocol = self.tls.alpn_protocol();
        Tls {
            version: version.map_or_else(String::new, |version| format!("{version:?}")),
            protocol: protocol.map(|name| String::from_utf8_lossy(name).into_owned()),
            server_name: self.tls.server_name().map(str::to_owned),
        }
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.tls.alpn_protocol() == Some(b"h2")
    }

    /// Receives records from the socket, or from the bytes that the last call left. Returns 0 at
    /// the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [std::mem::MaybeUninit::uninit(); 4096];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        let undecrypted = std::mem::take(&mut self.undecrypted);
        let data = if undecrypted.is_empty() {
            ready!(Pin::new(&mut self.io).poll_read(cx, buffer.unfilled()))?;
            buffer.filled()
        } else {
            &undecrypted
        };
        if let Err(error) = self.decrypt(data) {
            // Tries to send the alert, which tells the peer the reason.
            let _ = self.poll_send(cx);
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(data.len()))
    }

    /// Passes received bytes to rustls until there is plaintext to read.
    fn decrypt(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            if self.tls.read_tls(&mut data)? == 0 {
                // The peer has announced the end, so later bytes are ignored.
                return Ok(());
            }
            let state = self.tls.process_new_packets();
            let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if state.plaintext_bytes_to_read() != 0 {
                self.undecrypted.extend_from_slice(data);
                return Ok(());
            }
        }
        Ok(())
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.sent < self.encrypted.len() {
                let piece = &self.encrypted[self.sent..];
                let written = ready!(Pin::new(&mut self.io).poll_write(cx, piece))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.sent += written;
                continue;
            }
            self.encrypted.clear();
            self.sent = 0;
            if !self.tls.wants_write() {
                return Poll::Ready(Ok(()));
            }
            self.tls.write_tls(&mut self.encrypted)?;
        }
    }
}

impl Transport for TlsIo {
    fn poll_next_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.poll_next_read(cx)
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        loop {
            match self.tls.reader().fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer closed without `close_notify`. For HTTP this is a regular end, since
                // messages contain their lengths.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Ok(&[]));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if ready!(self.poll_receive(cx))? == 0 {
                // Reports the end to rustls, which returns it to the next read.
                let _ = self.tls.read_tls(&mut io::empty())?;
                let _ = self.tls.process_new_packets();
            } else if self.tls.wants_write() {
                // rustls has a key update or a session ticket to send. Bytes that cannot be sent
                // now are sent with the next write.
                let _ = self.poll_send(cx)?;
            }
        }
        Poll::Ready(self.tls.reader().into_first_chunk())
    }

    fn consume(&mut self, count: usize) {
        self.tls.reader().consume(count);
    }

    fn received(&self) -> u64 {
        self.io.received()
    }
}

impl Read for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let data = ready!(self.poll_fill(cx))?;
        let count = data.len().min(buf.remaining());
        buf.put_slice(&data[..count]);
        self.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl Write for TlsIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(cx))?;
        let written = self.tls.writer().write(bytes)?;
        // Starts to send; the next call or flush waits for the remaining bytes.
        let _ = self.poll_send(cx)?;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(cx))?;
        let written = self.tls.writer().write_vectored(pieces)?;
        let _ = self.poll_send(cx)?;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.send_close_notify();
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
