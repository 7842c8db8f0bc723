//! Plaintext and matrix servers on monoio. Variants: `default`, and `tuned`, for which the public
//! builder sets SINGLE_ISSUER and DEFER_TASKRUN on the ring.

use std::io;

use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{Args, QUEUE_CAPACITY, READ_BYTES, Work, listen, parse_args};
use local_sync::mpsc::bounded;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt, Splitable};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};

fn main() -> io::Result<()> {
    let args = parse_args(&["default", "tuned"]);
    let mut ring = io_uring::IoUring::builder();
    if args.variant == "tuned" {
        ring.setup_single_issuer().setup_defer_taskrun();
    }
    let builder = RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring);
    builder.build()?.block_on(accept(args))
}

async fn accept(args: Args) -> io::Result<()> {
    let listener = TcpListener::from_std(listen(&args)?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        match args.work {
            Work::Plaintext => drop(monoio::spawn(plaintext(stream))),
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
        let result;
        (result, input) = stream.read(input).await;
        let is_open = result? > 0 && requests.feed(&input, &mut output);
        let result;
        (result, output) = stream.write_all(output).await;
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
    monoio::spawn(async move {
        let (mut frames, mut input) = (Frames::default(), Vec::with_capacity(READ_BYTES));
        loop {
            let result;
            (result, input) = reader.read(input).await;
            if result? == 0 {
                return Ok(());
            }
            let mut chunk = &input[..];
            while let Some(frame) = frames.next(&mut chunk)? {
                if frames_in.send(frame).await.is_err() {
                    return io::Result::Ok(());
                }
            }
        }
    });
    monoio::spawn(async move {
        while let Some(frame) = frames_out.recv().await {
            if squares_in.send(frame.square()).await.is_err() {
                break;
            }
        }
    });
    monoio::spawn(async move {
        while let Some(reply) = squares_out.recv().await {
            writer.write_all(reply).await.0?;
        }
        io::Result::Ok(())
    });
}
