//! A plaintext server with one thread per connection, and a matrix server with three, joined by two
//! bounded channels. Each thread has a stack of 128 KiB, of which only the used part takes memory.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::sync_channel;

use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{QUEUE_CAPACITY, READ_BYTES, Work, listen, parse_args};

const STACK_BYTES: usize = 128 * 1024;

fn main() -> io::Result<()> {
    let args = parse_args(&["default"]);
    for stream in listen(&args)?.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        match args.work {
            Work::Plaintext => thread(move || plaintext(stream))?,
            Work::Matrix => matrix(stream)?,
        }
    }
    Ok(())
}

fn thread(body: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
    // A lost connection ends its threads.
    builder.spawn(move || drop(body())).map(drop)
}

fn plaintext(mut stream: TcpStream) -> io::Result<()> {
    let (mut requests, mut input, mut output) =
        (Requests::default(), vec![0; READ_BYTES], Vec::new());
    loop {
        let count = stream.read(&mut input)?;
        let is_open = count > 0 && requests.feed(&input[..count], &mut output);
        stream.write_all(&output)?;
        output.clear();
        if !is_open {
            return Ok(());
        }
    }
}

fn matrix(mut reader: TcpStream) -> io::Result<()> {
    let mut writer = reader.try_clone()?;
    let (frames_in, frames_out) = sync_channel(QUEUE_CAPACITY);
    let (squares_in, squares_out) = sync_channel::<Vec<u8>>(QUEUE_CAPACITY);
    thread(move || {
        let (mut frames, mut input) = (Frames::default(), vec![0; READ_BYTES]);
        loop {
            let count = reader.read(&mut input)?;
            if count == 0 {
                return Ok(());
            }
            let mut chunk = &input[..count];
            while let Some(frame) = frames.next(&mut chunk)? {
                if frames_in.send(frame).is_err() {
                    return Ok(());
                }
            }
        }
    })?;
    thread(move || {
        while let Ok(frame) = frames_out.recv() {
            if squares_in.send(frame.square()).is_err() {
                break;
            }
        }
        Ok(())
    })?;
    thread(move || {
        while let Ok(reply) = squares_out.recv() {
            writer.write_all(&reply)?;
        }
        Ok(())
    })
}
