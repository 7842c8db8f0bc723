//! Servers for the tests of the client, with a thread for each connection. They run until the test
//! program ends.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use upshift_load::frames::Frames;
use upshift_load::requests::Requests;
use upshift_load::{Burner, spin};

/// Starts a server that runs `converse` for each connection; returns its address.
pub(crate) fn serve(
    converse: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).unwrap();
            let converse = converse.clone();
            std::thread::spawn(move || converse(stream));
        }
    });
    address
}

/// Reads to the end of the input and answers each piece with the bytes that `answer` appends.
fn answer(mut stream: TcpStream, mut answer: impl FnMut(&[u8], &mut Vec<u8>)) -> io::Result<()> {
    let (mut input, mut output) = (vec![0; 16 * 1024], Vec::new());
    loop {
        let count = stream.read(&mut input)?;
        if count == 0 {
            return Ok(());
        }
        output.clear();
        answer(&input[..count], &mut output);
        stream.write_all(&output)?;
    }
}

#[allow(dead_code, reason = "not every test file has every server")]
pub(crate) fn matrix() -> SocketAddr {
    serve(|stream| {
        let mut frames = Frames::default();
        answer(stream, |mut chunk, out| {
            while let Some(frame) = frames.next(&mut chunk).unwrap() {
                out.extend(frame.square());
            }
        })
    })
}

#[allow(dead_code, reason = "not every test file has every server")]
pub(crate) fn plaintext() -> SocketAddr {
    serve(|stream| {
        let mut requests = Requests::default();
        answer(stream, |chunk, out| {
            let _ = requests.feed(chunk, out);
        })
    })
}

#[allow(dead_code, reason = "not every test file has every server")]
pub(crate) fn spin() -> SocketAddr {
    let burner = Burner::calibrate();
    serve(move |stream| {
        let mut frames = spin::Frames::default();
        answer(stream, |mut chunk, out| {
            while let Some(request) = frames.next(&mut chunk).unwrap() {
                burner.burn(request.service);
                out.extend(request.bytes());
            }
        })
    })
}
