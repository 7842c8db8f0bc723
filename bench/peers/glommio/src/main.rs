//! Plaintext and matrix servers on one local executor of glommio, with its default settings.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};

use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{Args, QUEUE_CAPACITY, READ_BYTES, Work, listen, parse_args};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::channels::local_channel::new_bounded;
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement, spawn_local};

fn main() -> io::Result<()> {
    let args = parse_args(&["default"]);
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make()?;
    executor.run(accept(args))
}

async fn accept(args: Args) -> io::Result<()> {
    // SAFETY: the descriptor is an open, listening TCP socket that nothing else owns any more.
    let listener = unsafe { TcpListener::from_raw_fd(listen(&args)?.into_raw_fd()) };
    loop {
        let stream = listener.accept().await?;
        stream.set_nodelay(true)?;
        match args.work {
            Work::Plaintext => drop(spawn_local(plaintext(stream)).detach()),
            Work::Matrix => matrix(stream),
        }
    }
}

async fn plaintext(mut stream: TcpStream) -> io::Result<()> {
    let (mut requests, mut input, mut output) =
        (Requests::default(), vec![0; READ_BYTES], Vec::new());
    loop {
        let count = stream.read(&mut input).await?;
        let is_open = count > 0 && requests.feed(&input[..count], &mut output);
        stream.write_all(&output).await?;
        output.clear();
        if !is_open {
            return Ok(());
        }
    }
}

fn matrix(stream: TcpStream) {
    let (mut reader, mut writer) = futures_lite::io::split(stream);
    let (frames_in, frames_out) = new_bounded(QUEUE_CAPACITY);
    let (squares_in, squares_out) = new_bounded::<Vec<u8>>(QUEUE_CAPACITY);
    spawn_local(async move {
        let (mut frames, mut input) = (Frames::default(), vec![0; READ_BYTES]);
        loop {
            let count = reader.read(&mut input).await?;
            if count == 0 {
                return Ok(());
            }
            let mut chunk = &input[..count];
            while let Some(frame) = frames.next(&mut chunk)? {
                if frames_in.send(frame).await.is_err() {
                    return io::Result::Ok(());
                }
            }
        }
    })
    .detach();
    spawn_local(async move {
        while let Some(frame) = frames_out.recv().await {
            if squares_in.send(frame.square()).await.is_err() {
                break;
            }
        }
    })
    .detach();
    spawn_local(async move {
        while let Some(reply) = squares_out.recv().await {
            writer.write_all(&reply).await?;
        }
        io::Result::Ok(())
    })
    .detach();
}
