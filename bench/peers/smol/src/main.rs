//! Plaintext and matrix servers on smol, that is, on async-executor and async-io. Each thread runs
//! `block_on(executor.run(…))`.

use std::io;
use std::sync::Arc;

use async_executor::Executor;
use async_io::{Async, block_on};
use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{Args, QUEUE_CAPACITY, READ_BYTES, Work, listen, parse_args};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use std::net::{TcpListener, TcpStream};

static EXECUTOR: Executor<'static> = Executor::new();

fn main() -> io::Result<()> {
    let args = parse_args(&["default"]);
    for _ in 1..args.workers {
        std::thread::spawn(|| block_on(EXECUTOR.run(std::future::pending::<()>())));
    }
    block_on(EXECUTOR.run(accept(args)))
}

async fn accept(args: Args) -> io::Result<()> {
    let listener = Async::<TcpListener>::new(listen(&args)?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.get_ref().set_nodelay(true)?;
        match args.work {
            Work::Plaintext => EXECUTOR.spawn(plaintext(stream)).detach(),
            Work::Matrix => matrix(Arc::new(stream)),
        }
    }
}

async fn plaintext(mut stream: Async<TcpStream>) -> io::Result<()> {
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

fn matrix(stream: Arc<Async<TcpStream>>) {
    let (frames_in, frames_out) = async_channel::bounded(QUEUE_CAPACITY);
    let (squares_in, squares_out) = async_channel::bounded::<Vec<u8>>(QUEUE_CAPACITY);
    let reader = stream.clone();
    EXECUTOR
        .spawn(async move {
            let (mut frames, mut input) = (Frames::default(), vec![0; READ_BYTES]);
            loop {
                let count = (&*reader).read(&mut input).await?;
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
    EXECUTOR
        .spawn(async move {
            while let Ok(frame) = frames_out.recv().await {
                if squares_in.send(frame.square()).await.is_err() {
                    break;
                }
            }
        })
        .detach();
    EXECUTOR
        .spawn(async move {
            while let Ok(reply) = squares_out.recv().await {
                (&*stream).write_all(&reply).await?;
            }
            io::Result::Ok(())
        })
        .detach();
}
