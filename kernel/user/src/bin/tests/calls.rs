//! Tests of system calls: pipes, and wrong arguments.

use alloc::vec::Vec;

use os_user::{Error, pipe, read, spawn, sys, wait, write};

use crate::{LATER, Outcome, close, ensure, message};

pub(crate) fn pipe_carries_bytes() -> Outcome {
    let (request, reply) = (pipe().map_err(message)?, pipe().map_err(message)?);
    let files = [request.reader, reply.writer];
    let child = spawn("child", b"echo", &files, 20).map_err(message)?;
    close(request.reader)?;
    close(reply.writer)?;
    let mut seen = 0;
    for round in 0..50u8 {
        let sent = [round; 100];
        write(request.writer, &sent).map_err(message)?;
        let mut received = [0; 100];
        let mut count = 0;
        while count < received.len() {
            count += read(reply.reader, &mut received[count..]).map_err(message)?;
        }
        ensure!(received == sent, "round {round} came back changed");
        seen += count;
    }
    close(request.writer)?;
    ensure!(wait(child).map_err(message)? == 0, "the child failed");
    close(reply.reader)?;
    ensure!(seen == 5000, "{seen} bytes came back");
    Ok(())
}

/// Checks the copied bytes for copies that begin and end at any offset in a word, in the source and
/// in the target.
pub(crate) fn bytes_are_copied_at_any_offset() -> Outcome {
    const MAX_LEN: usize = 48;
    let pipe = pipe().map_err(message)?;
    let mut source = [0; MAX_LEN + 8];
    for (index, byte) in source.iter_mut().enumerate() {
        *byte = index as u8 + 1;
    }
    for first in 0..8 {
        for second in 0..8 {
            for len in (1..MAX_LEN).step_by(if first == second { 1 } else { 5 }) {
                let sent = &source[first..first + len];
                let mut target = [0; MAX_LEN + 9];
                let written = write(pipe.writer, sent);
                let count = read(pipe.reader, &mut target[second..second + len]);
                ensure!(
                    (written, count) == (Ok(len), Ok(len)),
                    "written: {written:?}, read: {count:?}"
                );
                let is_copied = &target[second..second + len] == sent;
                let surroundings = target[..second].iter().chain(&target[second + len..]);
                ensure!(
                    is_copied && surroundings.into_iter().all(|byte| *byte == 0),
                    "{len} bytes from {first} to {second}: {target:?}"
                );
            }
        }
    }
    close(pipe.reader)?;
    close(pipe.writer)
}

pub(crate) fn pipe_ends_with_its_last_writer() -> Outcome {
    let pipe = pipe().map_err(message)?;
    write(pipe.writer, b"last").map_err(message)?;
    close(pipe.writer)?;
    let mut buffer = [0; 16];
    ensure!(
        read(pipe.reader, &mut buffer) == Ok(4),
        "the written bytes are lost"
    );
    ensure!(
        read(pipe.reader, &mut buffer) == Ok(0),
        "the pipe has no end"
    );
    close(pipe.reader)
}

pub(crate) fn pipe_breaks_with_its_last_reader() -> Outcome {
    let pipe = pipe().map_err(message)?;
    close(pipe.reader)?;
    let result = write(pipe.writer, b"to nobody");
    ensure!(result == Err(Error::BrokenPipe), "{result:?}");
    close(pipe.writer)
}

pub(crate) fn ring_of_processes_passes_a_token() -> Outcome {
    const LINKS: usize = 8;
    const ROUNDS: u32 = 20;
    let first = pipe().map_err(message)?;
    let mut input = first.reader;
    let mut children = Vec::new();
    for _ in 0..LINKS {
        let next = pipe().map_err(message)?;
        children.push(spawn("child", b"echo", &[input, next.writer], LATER).map_err(message)?);
        close(input)?;
        close(next.writer)?;
        input = next.reader;
    }
    for round in 0..ROUNDS {
        write(first.writer, &round.to_le_bytes()).map_err(message)?;
        let mut token = [0; 4];
        ensure!(read(input, &mut token) == Ok(4), "the token is lost");
        ensure!(u32::from_le_bytes(token) == round, "the token differs");
    }
    close(first.writer)?;
    for child in children {
        ensure!(wait(child).map_err(message)? == 0, "a link failed");
    }
    close(input)
}

/// Checks that the byte arrives. The ring has the published number of coroutines, unless chaos
/// (`kernel/src/chaos.rs`) disturbs the machine.
pub(crate) fn ring_of_coroutines_passes_a_byte() -> Outcome {
    let count: &[u8] = if sys::has_chaos() { b"300" } else { b"3600" };
    let child = spawn("ring", count, &[1, 1], LATER).map_err(message)?;
    let status = wait(child).map_err(message)?;
    ensure!(status == 0, "status {status}");
    Ok(())
}

pub(crate) fn bad_pointers_are_errors() -> Outcome {
    let pipe = pipe().map_err(message)?;
    write(pipe.writer, b"some bytes").map_err(message)?;
    let text_address = bad_pointers_are_errors as *const () as usize;
    let kernel = 0xffff_ffc0_8020_0000;
    let info = os_user::argument().as_ptr() as usize;
    for (address, len) in [
        (0, 8),
        (kernel, 8),
        (usize::MAX - 3, 8),
        (text_address, usize::MAX),
        ((1 << 38) - 4, 8),
        (text_address, 8),
        (info, 8),
    ] {
        let result = sys::read(pipe.reader, address, len);
        ensure!(
            result == Err(Error::BadAddress),
            "read to {address:#x}: {result:?}"
        );
    }
    for (address, len) in [(0, 8), (kernel, 8), (usize::MAX - 3, 8), ((1 << 38) - 4, 8)] {
        let result = sys::write(pipe.writer, address, len);
        ensure!(
            result == Err(Error::BadAddress),
            "write from {address:#x}: {result:?}"
        );
        let result = sys::spawn(address);
        ensure!(
            result == Err(Error::BadAddress),
            "spawn from {address:#x}: {result:?}"
        );
    }
    let mut buffer = [0; 16];
    ensure!(
        read(pipe.reader, &mut buffer) == Ok(10),
        "a failed read has consumed bytes"
    );
    close(pipe.reader)?;
    close(pipe.writer)
}

pub(crate) fn bad_calls_are_errors() -> Outcome {
    for number in [15, 999, usize::MAX] {
        let result = sys::raw(number, [0; 6]);
        ensure!(
            result == Err(Error::NoSuchCall),
            "call {number}: {result:?}"
        );
    }
    for file in [9, 16, usize::MAX] {
        ensure!(sys::close(file) == Err(Error::BadFile), "closed {file}");
        let mut buffer = [0; 4];
        ensure!(
            read(file, &mut buffer) == Err(Error::BadFile),
            "read from {file}"
        );
    }
    let result = spawn("nothing", b"", &[], LATER);
    ensure!(result == Err(Error::NoProgram), "{result:?}");
    let result = spawn("child", &[0; 257], &[], LATER);
    ensure!(result == Err(Error::BadArgument), "{result:?}");
    let result = spawn("child", b"exit 0", &[77], LATER);
    ensure!(result == Err(Error::BadFile), "{result:?}");
    for pages in [usize::MAX, 1 << 51, 1 << 30] {
        ensure!(
            sys::map(pages) == Err(Error::OutOfMemory),
            "mapped {pages} pages"
        );
    }
    Ok(())
}

pub(crate) fn descriptors_are_limited() -> Outcome {
    let mut pipes = Vec::new();
    let error = loop {
        match pipe() {
            Ok(pipe) => pipes.push(pipe),
            Err(error) => break error,
        }
    };
    for pipe in pipes {
        close(pipe.reader)?;
        close(pipe.writer)?;
    }
    ensure!(error == Error::TooMany, "{error:?}");
    Ok(())
}
