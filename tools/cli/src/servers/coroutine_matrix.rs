//! The matrix server, with three coroutines for each connection: one receives, one computes, one
//! sends.
//!
//! Two bounded queues of [`QUEUE_LEN`] frames connect the three coroutines, which all have the
//! level of the connection. A client that never reads fills the outgoing queue, then the incoming
//! queue, then its own socket, so memory is bounded by `2 * QUEUE_LEN` frames plus those that the
//! coroutines are processing. When one coroutine ends, its queues close, so that its neighbours
//! end, too; frames received before the end of the input are still answered.
//!
//! A product is computed in one poll, during which more urgent connections on the same vCPU wait.
//! The poll takes a few microseconds for a matrix of 20 × 20, and most of a second for 1024 × 1024.

use anyhow::Result;
use upshift::net::{OwnedReadHalf, OwnedWriteHalf};
use upshift::sync::mpsc::{self, Receiver, Sender};
use upshift_load::frames::{Frame, Frames};

use super::args::ServerArgs;
use super::coroutine::{self, Client};

/// Number of frames that each of the two queues of a connection holds.
const QUEUE_LEN: usize = 16;

pub(crate) fn serve(args: &ServerArgs) -> Result<()> {
    coroutine::run("matrix-server", args, start)
}

fn start(client: Client) {
    let Client {
        stream,
        peer,
        level,
    } = client;
    let (to_compute, from_receive) = mpsc::channel(QUEUE_LEN);
    let (to_send, from_compute) = mpsc::channel(QUEUE_LEN);
    let (input, output) = stream.into_split();
    upshift::spawn(send(from_compute, output), level).detach();
    upshift::spawn(compute(from_receive, to_send), level).detach();
    upshift::spawn(
        async move {
            let mut input = input;
            if let Err(error) = receive(&mut input, to_compute).await {
                eprintln!("matrix-server: closed {peer}: {error}");
                coroutine::discard(&mut input).await;
            }
        },
        level,
    )
    .detach();
}

/// Splits the input into frames until it ends or the connection is lost. Both are `Ok`; an invalid
/// or truncated frame is an error.
async fn receive(input: &mut OwnedReadHalf, frames: Sender<Frame>) -> Result<(), String> {
    let mut decoder = Frames::default();
    loop {
        let Ok(data) = input.recv().await else {
            return Ok(());
        };
        if data.is_empty() {
            return if decoder.is_at_boundary() {
                Ok(())
            } else {
                Err("the input ended in the middle of a frame".into())
            };
        }
        let mut chunk: &[u8] = &data;
        while let Some(frame) = decoder
            .next(&mut chunk)
            .map_err(|error| error.to_string())?
        {
            if frames.send(frame).await.is_err() {
                return Ok(());
            }
        }
    }
}

async fn compute(mut frames: Receiver<Frame>, replies: Sender<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if replies.send(frame.square()).await.is_err() {
            return;
        }
    }
}

/// Writes each reply separately, as the other servers of the comparison do.
async fn send(mut replies: Receiver<Vec<u8>>, mut output: OwnedWriteHalf) {
    while let Some(reply) = replies.recv().await {
        if output.write_all(reply).await.0.is_err() {
            return;
        }
    }
}
