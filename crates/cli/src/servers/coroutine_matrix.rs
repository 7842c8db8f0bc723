//! The matrix server with three coroutines per connection: receive → bounded
//! queue → compute → bounded queue → send, as in the evaluation of the
//! SharedScheduler papers.
//!
//! All three have the level of the address that the connection came in by. The
//! queues hold 16 frames each: a client that does not read its replies stops the
//! sender, then the computer, then the receiver, and then its own requests, so a
//! connection costs at most 34 frames of memory. A frame that cannot be one ends
//! the connection, after the replies to the frames before it.

use std::io;

use upshift::net::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
use upshift::sync::mpsc;
use upshift::Level;
use upshift_load::matrix;

use super::ServerOptions;
use super::coroutine;

/// Frames in each queue.
const QUEUE: usize = 16;

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(options: &ServerOptions) -> anyhow::Result<()> {
    coroutine::serve(options, converse)
}

/// A payload and the order of its matrix.
struct Request {
    payload: Vec<u8>,
    order: usize,
}

async fn converse(stream: TcpStream, level: Level) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let (requests, computer) = mpsc::channel(QUEUE);
    let (replies, sender) = mpsc::channel(QUEUE);
    upshift::spawn(compute(computer, replies), level).detach();
    upshift::spawn(send(sender, writer), level).detach();
    receive(reader, requests).await
}

async fn receive(mut reader: OwnedReadHalf, requests: mpsc::Sender<Request>) -> io::Result<()> {
    let mut frames = Frames::default();
    loop {
        let data = reader.recv().await?;
        if data.is_empty() {
            return frames.end();
        }
        let mut rest = &data[..];
        while let Some(request) = frames.next(&mut rest)? {
            if requests.send(request).await.is_err() {
                return Ok(());
            }
        }
    }
}

async fn compute(mut requests: mpsc::Receiver<Request>, replies: mpsc::Sender<Vec<u8>>) {
    while let Some(Request { payload, order }) = requests.recv().await {
        let mut reply = Vec::with_capacity(matrix::HEADER + payload.len());
        matrix::square(&payload, order, &mut reply);
        if replies.send(reply).await.is_err() {
            return;
        }
    }
}

async fn send(mut replies: mpsc::Receiver<Vec<u8>>, mut writer: OwnedWriteHalf) {
    while let Some(reply) = replies.recv().await {
        if writer.write_all(reply).await.0.is_err() {
            return;
        }
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Default)]
struct Frames {
    header: Vec<u8>,
    /// The frame whose payload is coming in.
    open: Option<(usize, Vec<u8>)>,
}

impl Frames {
    /// The next complete frame; `None` when `input` is used up.
    fn next(&mut self, input: &mut &[u8]) -> io::Result<Option<Request>> {
        let (order, mut payload) = match self.open.take() {
            Some(open) => open,
            None => {
                let missing = matrix::HEADER - self.header.len();
                let (head, rest) = input.split_at(missing.min(input.len()));
                self.header.extend_from_slice(head);
                *input = rest;
                let Ok(header) = <[u8; matrix::HEADER]>::try_from(&self.header[..]) else {
                    return Ok(None);
                };
                self.header.clear();
                let length = u32::from_le_bytes(header);
                let order = matrix::order(length)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                // Grows with what comes, not with what is announced.
                (order, Vec::with_capacity(input.len().min(length as usize)))
            }
        };
        let missing = matrix::payload_len(order) - payload.len();
        let (data, rest) = input.split_at(missing.min(input.len()));
        payload.extend_from_slice(data);
        *input = rest;
        if data.len() < missing {
            self.open = Some((order, payload));
            return Ok(None);
        }
        Ok(Some(Request { payload, order }))
    }

    /// The peer has finished.
    fn end(&self) -> io::Result<()> {
        if self.open.is_some() || !self.header.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection ended in the middle of a frame",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let stream = [matrix::frame(3, 1), matrix::frame(1, 2), matrix::frame(8, 3)].concat();
        for cut in 1..stream.len() {
            let mut frames = Frames::default();
            let mut orders = Vec::new();
            for mut piece in stream.chunks(cut) {
                while let Some(request) = frames.next(&mut piece).unwrap() {
                    assert_eq!(request.payload.len(), matrix::payload_len(request.order));
                    orders.push(request.order);
                }
            }
            assert_eq!(orders, [3, 1, 8], "cut {cut}");
            frames.end().unwrap();
        }
    }

    #[test]
    fn impossible_lengths_and_cut_frames_are_errors() {
        for length in [0u32, 7, 12, u32::MAX] {
            let bytes = length.to_le_bytes();
            assert!(Frames::default().next(&mut &bytes[..]).is_err(), "{length}");
        }
        let mut frames = Frames::default();
        assert!(frames.next(&mut &matrix::frame(2, 1)[..9]).unwrap().is_none());
        assert!(frames.end().is_err());
    }
}
