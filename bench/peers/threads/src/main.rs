//! Plaintext and spin servers with one thread per connection, and a matrix server with three,
//! joined by two bounded channels. Each thread has a stack of 128 KiB, of which only the used part
//! takes memory.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::sync_channel;

use bench_kit::frames::Frames;
use bench_kit::requests::Requests;
use bench_kit::server::{QUEUE, READ, args_for, listen};
use upshift_load::{Burner, spin};

/// Bytes of a thread's stack.
const STACK: usize = 128 * 1024;

/// Which server to be.
#[derive(Clone, Copy)]
enum Work {
    Plaintext,
    Matrix,
    Spin,
}

fn main() -> io::Result<()> {
    let works = [
        ("plaintext", Work::Plaintext),
        ("matrix", Work::Matrix),
        ("spin", Work::Spin),
    ];
    let args = args_for(&works, &["default"]);
    let burner = matches!(args.work, Work::Spin).then(Burner::calibrate);
    for stream in listen(&args)?.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        match args.work {
            Work::Plaintext => thread(move || plaintext(stream))?,
            Work::Matrix => matrix(stream)?,
            Work::Spin => {
                if let Some(burner) = burner {
                    thread(move || spin(stream, burner))?;
                }
            }
        }
    }
    Ok(())
}

fn thread(body: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().stack_size(STACK);
    // A connection that is lost ends its threads.
    builder.spawn(move || drop(body())).map(drop)
}

fn plaintext(mut stream: TcpStream) -> io::Result<()> {
    let (mut requests, mut input, mut output) = (Requests::default(), vec![0; READ], Vec::new());
    loop {
        let count = stream.read(&mut input)?;
        let open = count > 0 && requests.feed(&input[..count], &mut output);
        stream.write_all(&output)?;
        output.clear();
        if !open {
            return Ok(());
        }
    }
}

fn spin(mut stream: TcpStream, burner: Burner) -> io::Result<()> {
    let (mut frames, mut input) = (spin::Frames::default(), vec![0; READ]);
    loop {
        let count = stream.read(&mut input)?;
        if count == 0 {
            return Ok(());
        }
        let mut chunk = &input[..count];
        while let Some(request) = frames.next(&mut chunk).map_err(io::Error::other)? {
            burner.burn(request.service);
            stream.write_all(&request.bytes())?;
        }
    }
}

fn matrix(mut reader: TcpStream) -> io::Result<()> {
    let mut writer = reader.try_clone()?;
    let (frames_in, frames_out) = sync_channel(QUEUE);
    let (squares_in, squares_out) = sync_channel::<Vec<u8>>(QUEUE);
    thread(move || {
        let (mut frames, mut input) = (Frames::default(), vec![0; READ]);
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
