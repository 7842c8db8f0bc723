//! Plaintext and matrix servers on tokio. Variants: `ct` (current_thread) and `mt` (multi_thread,
//! with one worker or with `--workers`).

use std::io;

use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{Args, QUEUE_CAPACITY, READ_BYTES, Work, listen, parse_args};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

fn main() -> io::Result<()> {
    let args = parse_args(&["ct", "mt"]);
    if args.variant == "ct" {
        return Builder::new_current_thread()
            .enable_io()
            .build()?
            .block_on(accept(args));
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(args.workers)
        .enable_io()
        .build()?;
    // tokio's docs advise to run the accept loop on a worker, not on the thread of `block_on`.
    runtime.block_on(async { tokio::spawn(accept(args)).await.map_err(io::Error::other)? })
}

async fn accept(args: Args) -> io::Result<()> {
    let listener = listen(&args)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        match args.work {
            Work::Plaintext => drop(tokio::spawn(plaintext(stream))),
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
    let (mut reader, mut writer) = stream.into_split();
    let (frames_in, mut frames_out) = mpsc::channel(QUEUE_CAPACITY);
    let (squares_in, mut squares_out) = mpsc::channel(QUEUE_CAPACITY);
    tokio::spawn(async move {
        let (mut frames, mut input) = (Frames::default(), vec![0; READ_BYTES]);
        loop {
            let count = reader.read(&mut input).await?;
            let mut chunk = &input[..count];
            if count == 0 {
                return Ok(());
            }
            while let Some(frame) = frames.next(&mut chunk)? {
                if frames_in.send(frame).await.is_err() {
                    return io::Result::Ok(());
                }
            }
        }
    });
    tokio::spawn(async move {
        while let Some(frame) = frames_out.recv().await {
            if squares_in.send(frame.square()).await.is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(reply) = squares_out.recv().await {
            writer.write_all(&reply).await?;
        }
        io::Result::Ok(())
    });
}
