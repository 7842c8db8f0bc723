//! Plaintext and matrix servers on may, which has stackful coroutines, with one worker.
//!
//! may has no bounded channel. The matrix server uses two unbounded queues, which favours may.

use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, IntoRawFd};

use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{READ_BYTES, Work, listen, parse_args};
use may::go;
use may::net::{TcpListener, TcpStream};
use may::sync::mpsc;

fn main() -> io::Result<()> {
    let args = parse_args(&["default"]);
    // Stacks of 8 Ki words suffice, because the read buffers of 8 KiB are on the heap and the
    // matrix product needs little stack.
    may::config().set_workers(1).set_stack_size(0x2000);
    let listener = listen(&args)?;
    listener.set_nonblocking(true)?;
    // SAFETY: the descriptor is an open, listening TCP socket that nothing else owns any more.
    let listener = unsafe { TcpListener::from_raw_fd(listener.into_raw_fd()) };
    let acceptor = go!(move || -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            match args.work {
                Work::Plaintext => drop(go!(move || plaintext(stream))),
                Work::Matrix => matrix(stream)?,
            }
        }
    });
    acceptor
        .join()
        .map_err(|_| io::Error::other("the accepting coroutine panicked"))?
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
    let (frames_in, frames_out) = mpsc::channel();
    let (squares_in, squares_out) = mpsc::channel::<Vec<u8>>();
    go!(move || {
        let (mut frames, mut input) = (Frames::default(), vec![0; READ_BYTES]);
        loop {
            let count = reader.read(&mut input)?;
            if count == 0 {
                return Ok(());
            }
            let mut chunk = &input[..count];
            while let Some(frame) = frames.next(&mut chunk)? {
                if frames_in.send(frame).is_err() {
                    return io::Result::Ok(());
                }
            }
        }
    });
    go!(move || {
        while let Ok(frame) = frames_out.recv() {
            if squares_in.send(frame.square()).is_err() {
                break;
            }
        }
    });
    go!(move || {
        while let Ok(reply) = squares_out.recv() {
            writer.write_all(&reply)?;
        }
        io::Result::Ok(())
    });
    Ok(())
}
