//! Socket calls. Bytes are copied directly between the program's memory and the socket's buffer.

use alloc::sync::Arc;

use os_abi::{Error, datagram};

use super::Answer;
use super::later::CallStart;
use crate::memory::pagetable::Access;
use crate::memory::user::UserSlice;
use crate::net::Socket;
use crate::process::{File, Process, Thread};

type Arguments = [usize; 6];

pub(super) fn parse_port(word: usize) -> Result<u16, Error> {
    u16::try_from(word).map_err(|_| Error::BadArgument)
}

fn open(thread: &mut Thread, socket: Socket) -> Answer {
    let [descriptor] = thread.process.add_files([File::Socket(Arc::new(socket))])?;
    Ok(descriptor as isize)
}

pub(super) fn socket(thread: &mut Thread, _: Arguments) -> Answer {
    let socket = Socket::stream(thread.process.share());
    open(thread, socket)
}

pub(super) fn datagram_socket(thread: &mut Thread, _: Arguments) -> Answer {
    let socket = Socket::datagrams(thread.process.share());
    open(thread, socket)
}

pub(super) fn bind(thread: &mut Thread, [file, port, ..]: Arguments) -> Answer {
    let socket = thread.process.file(file)?.socket()?;
    socket.bind(parse_port(port)?)?;
    Ok(0)
}

pub(super) fn listen(thread: &mut Thread, [file, backlog, ..]: Arguments) -> Answer {
    let socket = thread.process.file(file)?.socket()?;
    socket.listen(backlog)?;
    Ok(0)
}

pub(super) fn shutdown(thread: &mut Thread, [file, ..]: Arguments) -> Answer {
    let socket = thread.process.file(file)?.socket()?;
    socket.shutdown(thread.level)?;
    Ok(0)
}

/// Reads received bytes, at most as many as fit. Returns `None` if there are none.
pub(super) fn read(process: &Process, socket: &Socket, to: UserSlice) -> Option<Answer> {
    let space = match process.space() {
        Ok(space) => space,
        Err(error) => return Some(Err(error)),
    };
    let copy_out = |at, bytes: &[u8]| space.write(to.part(at, bytes.len()), bytes);
    let count = socket.read(to.len(), copy_out)?;
    Some(count.map(|count| count as isize))
}

/// With `all`, writes all bytes or none, else as many as fit. Returns `None` if the caller must
/// wait.
pub(super) fn write(
    process: &Process,
    socket: &Socket,
    from: UserSlice,
    all: bool,
) -> Option<Result<usize, Error>> {
    let space = match process.space() {
        Ok(space) => space,
        Err(error) => return Some(Err(error)),
    };
    socket.write(from.len(), all, |at, bytes| {
        space.read(from.part(at, bytes.len()), bytes)
    })
}

pub(super) fn accept(
    process: Arc<Process>,
    [file, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let socket = process.file(file).and_then(File::socket);
    CallStart::Pending(async move {
        let accepted = File::Socket(Arc::new(socket?.accept().await?));
        let [descriptor] = process.add_files([accepted])?;
        Ok(descriptor as isize)
    })
}

pub(super) fn connect(
    process: Arc<Process>,
    [file, address, port, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let socket = process.file(file).and_then(File::socket);
    let address = u32::try_from(address).map_err(|_| Error::BadArgument);
    let port = parse_port(port);
    CallStart::Pending(async move {
        socket?.connect(address?, port?).await?;
        Ok(0)
    })
}

/// Returns the datagram socket and the memory of a transfer, which is checked first.
fn transfer(
    process: &Process,
    [file, start, len, ..]: Arguments,
    access: Access,
) -> Result<(Arc<Socket>, UserSlice), Error> {
    let socket = process.file(file)?.socket()?;
    let slice = UserSlice::new(start, len)?;
    process.space()?.check(slice, access)?;
    Ok((socket, slice))
}

pub(super) fn send_to(
    process: Arc<Process>,
    arguments: Arguments,
    inline: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let [.., address, port, _] = arguments;
    let parsed = transfer(&process, arguments, Access::Read).and_then(|(socket, from)| {
        let address = u32::try_from(address).map_err(|_| Error::BadArgument)?;
        Ok((socket, from, address, parse_port(port)?))
    });
    let (socket, from, address, port) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return CallStart::Done(Err(error)),
    };
    let send = move |process: &Process, socket: &Socket| {
        let space = match process.space() {
            Ok(space) => space,
            Err(error) => return Some(Err(error)),
        };
        let put = |bytes: &mut [u8]| space.read(from, bytes);
        let sent = socket.send_to(from.len(), address, port, put)?;
        Some(sent.map(|count| count as isize))
    };
    if inline && let Some(answer) = send(&process, &socket) {
        return CallStart::Done(answer);
    }
    CallStart::Pending(async move {
        loop {
            if let Some(answer) = send(&process, &socket) {
                return answer;
            }
            socket.writable().await;
        }
    })
}

pub(super) fn receive_from(
    process: Arc<Process>,
    arguments: Arguments,
    inline: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let (socket, to) = match transfer(&process, arguments, Access::Write) {
        Ok((_, to)) if to.len() < datagram::HEADER => {
            return CallStart::Done(Err(Error::BadArgument));
        }
        Ok(target) => target,
        Err(error) => return CallStart::Done(Err(error)),
    };
    let receive = move |process: &Process, socket: &Socket| {
        let space = match process.space() {
            Ok(space) => space,
            Err(error) => return Some(Err(error)),
        };
        let take = |address, port, bytes: &[u8]| {
            let header = datagram::header(address, port);
            space.write(to.part(0, header.len()), &header)?;
            let fits = &bytes[..bytes.len().min(to.len() - header.len())];
            space.write(to.part(header.len(), fits.len()), fits)?;
            Ok(header.len() + fits.len())
        };
        let count = socket.receive_from(take)?;
        Some(count.map(|count| count as isize))
    };
    if inline && let Some(answer) = receive(&process, &socket) {
        return CallStart::Done(answer);
    }
    CallStart::Pending(async move {
        loop {
            if let Some(answer) = receive(&process, &socket) {
                return answer;
            }
            socket.readable().await;
        }
    })
}
