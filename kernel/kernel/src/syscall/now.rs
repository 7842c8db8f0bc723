//! System calls that are answered at once.

use alloc::string::String;
use alloc::vec::Vec;

use os_abi::{Error, ProcessInfo, UserRange};
use upshift_core::Level;

use super::Answer;
use crate::arch::hart_index;
use crate::arch::trap::UserContext;
use crate::executor::LEAST_URGENT_WORK;
use crate::memory::heap;
use crate::memory::space::AddressSpace;
use crate::memory::user::UserSlice;
use crate::process::{self, File, Thread};
use crate::{archive, clock, futex, hart, pipe, run_queue};

/// Maximum length of a name in bytes.
pub(super) const MAX_NAME: usize = 64;

pub(super) use super::sockets::{bind, datagram_socket, listen, shutdown, socket};
pub(super) use super::storage::seek;

type Arguments = [usize; 6];

pub(super) fn exit(thread: &mut Thread, [status, ..]: Arguments) -> Answer {
    thread.process.end(status as isize, thread.level);
    Ok(0)
}

pub(super) fn yield_cpu(thread: &mut Thread, _: Arguments) -> Answer {
    thread.yield_hart();
    Ok(0)
}

pub(super) fn clock(_: &mut Thread, _: Arguments) -> Answer {
    Ok(clock::now() as isize)
}

pub(super) fn thread_create(
    thread: &mut Thread,
    [entry, stack, argument, ..]: Arguments,
) -> Answer {
    let mut context = UserContext::new(entry, stack);
    context.set_argument(0, argument);
    let (number, new) = thread.process.add_thread(None, context, thread.own_level)?;
    // If the process has ended, the queue drops the thread.
    run_queue::push_back(new);
    Ok(number as isize)
}

pub(super) fn cancel(thread: &mut Thread, [call, token, ..]: Arguments) -> Answer {
    thread.process.cancel_call(call, token as u64)?;
    Ok(0)
}

pub(super) fn reprio_call(thread: &mut Thread, [call, token, level, ..]: Arguments) -> Answer {
    let level = parse_level(level as u64)?.clamp(thread.process.ceiling, LEAST_URGENT_WORK);
    thread.process.reprio_numbered(call, token as u64, level)?;
    Ok(0)
}

pub(super) fn follow(thread: &mut Thread, [line, ..]: Arguments) -> Answer {
    thread.process.follow(line)?;
    Ok(0)
}

pub(super) fn futex_unlock(thread: &mut Thread, [address, ..]: Arguments) -> Answer {
    thread.process.unlock(address)?;
    Ok(0)
}

pub(super) fn unpark(thread: &mut Thread, [line, level, ..]: Arguments) -> Answer {
    let level = parse_level(level as u64)?;
    thread.process.unpark(line, level)?;
    Ok(0)
}

pub(super) fn futex_wake(thread: &mut Thread, [address, count, ..]: Arguments) -> Answer {
    Ok(futex::wake(&thread.process, address, count) as isize)
}

pub(super) fn set_level(thread: &mut Thread, [level, ..]: Arguments) -> Answer {
    let level = parse_level(level as u64)?;
    thread.own_level = thread.process.check_level(level)?;
    run_queue::update_running_level(hart_index(), thread);
    Ok(0)
}

pub(super) fn parse_level(word: u64) -> Result<Level, Error> {
    let byte = u8::try_from(word).map_err(|_| Error::BadArgument)?;
    Level::new(byte).map_err(|_| Error::BadArgument)
}

pub(super) fn pipe(thread: &mut Thread, _: Arguments) -> Answer {
    let (reader, writer) = pipe::new(thread.process.share())?;
    let files = [File::Pipe(reader), File::Pipe(writer)];
    let [reader, writer] = thread.process.add_files(files)?;
    Ok((reader | writer << 32) as isize)
}

pub(super) fn close(thread: &mut Thread, [file, ..]: Arguments) -> Answer {
    thread.process.close(file)?;
    Ok(0)
}

/// Copies the bytes of a range, which may have at most `max_len` bytes.
pub(super) fn bytes(
    space: &AddressSpace,
    range: UserRange,
    max_len: usize,
) -> Result<Vec<u8>, Error> {
    let slice = UserSlice::new(range.start as usize, range.len as usize)?;
    if slice.len() > max_len {
        return Err(Error::BadArgument);
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(slice.len())
        .map_err(|_| Error::OutOfMemory)?;
    bytes.resize(slice.len(), 0);
    space.read(slice, &mut bytes)?;
    Ok(bytes)
}

pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    bytes.chunks_exact(8).map(word)
}

pub(super) fn exec_arguments(
    thread: &Thread,
    [name, name_len, argument, argument_len, ..]: Arguments,
) -> Result<(String, Vec<u8>), Error> {
    let space = thread.process.space()?;
    let range = |start: usize, len: usize| UserRange {
        start: start as u64,
        len: len as u64,
    };
    let name = bytes(&space, range(name, name_len), MAX_NAME)?;
    let name = String::from_utf8(name).map_err(|_| Error::NoProgram)?;
    let argument = range(argument, argument_len);
    let argument = bytes(&space, argument, ProcessInfo::ARGUMENT)?;
    Ok((name, argument))
}

pub(super) fn kill(thread: &mut Thread, [process, ..]: Arguments) -> Answer {
    process::kill(thread.process.number(), process, thread.level)?;
    Ok(0)
}

/// Copies as many bytes to a program as fit; returns the full length.
fn copy_out(thread: &Thread, (start, len): (usize, usize), bytes: &[u8]) -> Answer {
    let to = UserSlice::new(start, len)?;
    let fitting = bytes.len().min(to.len());
    let space = thread.process.space()?;
    space.write(to.part(0, fitting), &bytes[..fitting])?;
    Ok(bytes.len() as isize)
}

pub(super) fn program(thread: &mut Thread, [index, start, len, ..]: Arguments) -> Answer {
    let name = archive::program(index).unwrap_or("");
    copy_out(thread, (start, len), name.as_bytes())
}

pub(super) fn process(thread: &mut Thread, [from, start, len, ..]: Arguments) -> Answer {
    let Some((next, status)) = process::status(from) else {
        return Ok(0);
    };
    copy_out(thread, (start, len), &status.to_bytes())?;
    Ok(next as isize)
}

pub(super) fn hart(thread: &mut Thread, [index, start, len, ..]: Arguments) -> Answer {
    let harts = hart::online().len();
    if index >= harts {
        return Err(Error::BadArgument);
    }
    let status = hart::at(index).times.status(run_queue::process_on(index));
    copy_out(thread, (start, len), &status.to_bytes())?;
    Ok(harts as isize)
}

pub(super) fn free_pages(_: &mut Thread, _: Arguments) -> Answer {
    Ok(heap::free_pages() as isize)
}
