//! Plaintext and matrix servers on compio. Variants: `default`, and `tuned`, for which the public
//! builder sets SINGLE_ISSUER and DEFER_TASKRUN on the ring.

use std::io;

use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{Args, QUEUE_CAPACITY, READ_BYTES, Work, listen, parse_args};
use compio::buf::BufResult;
use compio::driver::ProactorBuilder;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::{RuntimeBuilder, spawn};
use local_sync::mpsc::bounded;

fn main() -> io::Result<()> {
    let args = parse_args(&["default", "tuned"]);
    let mut ring = ProactorBuilder::new();
    if args.variant == "tuned" {
        ring.single_issuer(true).defer_taskrun(true);
    }
    RuntimeBuilder::new()
        .with_proactor(ring)
        .build()?
        .block_on(accept(args))
}

async fn accept(args: Args) -> io::Result<()> {
    let listener = TcpListener::from_std(listen(&args)?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        match args.work {
            Work::Plaintext => spawn(plaintext(stream)).detach(),
            Work::Matrix => matrix(stream),
        }
    }
}

async fn plaintext(mut stream: TcpStream) -> io::Result<()> {
    let (mut requests, mut input, mut output) = (
        Requests::default(),
        Vec::with_capacity(READ_BYTES),
        Vec::new(),
    );
    loop {
        let BufResult(result, buffer) = stream.read(input).await;
        input = buffer;
        // A short read does not shorten the buffer.
        let count = result?;
        let is_open = count > 0 && requests.feed(&input[..count], &mut output);
        let BufResult(result, buffer) = stream.write_all(output).await;
        output = buffer;
        result?;
        output.clear();
        if !is_open {
            return Ok(());
        }
    }
}

fn matrix(stream: TcpStream) {
    let (mut reader, mut writer) = stream.into_split();
    let (frames_in, mut frames_out) = bounded::channel(QUEUE_CAPACITY);
    let (squares_in, mut squares_out) = bounded::channel::<Vec<u8>>(QUEUE_CAPACITY);
    spawn(async move {
        let (mut frames, mut input) = (Frames::default(), Vec::with_capacity(READ_BYTES));
        loop {
            let BufResult(result, buffer) = reader.read(input).await;
            input = buffer;
            let count = result?;
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
    spawn(async move {
        while let Some(frame) = frames_out.recv().await {
            if squares_in.send(frame.square()).await.is_err() {
                break;
            }
        }
    })
    .detach();
    spawn(async move {
        while let Some(reply) = squares_out.recv().await {
            writer.write_all(reply).await.0?;
        }
        io::Result::Ok(())
    })
    .detach();
}
