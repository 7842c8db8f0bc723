//! Tests of the contents of files, by synchronous calls.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use os_user::files::{Entry, directory, fsync, list, open, read_to_end, seek, size, unlink};
use os_user::number::KILLED;
use os_user::testing::{Outcome, message};
use os_user::{
    Error, Fork, ensure, exec, exit, fork, pipe, read, sleep_micros, spawn, spawn_within, sys,
    wait, write,
};

use crate::{close, fresh, pattern};

/// Size of a block of the disk in bytes.
const BLOCK: usize = 4096;

pub(crate) async fn written_bytes_are_read() -> Outcome {
    let file = fresh("a")?;
    let bytes = pattern(1, 3 * BLOCK + 17);
    write(file, &bytes).map_err(message)?;
    ensure!(
        size(file) == Ok(bytes.len() as u64),
        "size {:?}",
        size(file)
    );
    ensure!(
        read_to_end(file) == Ok(Vec::new()),
        "a read at the end returned bytes"
    );
    seek(file, 0).map_err(message)?;
    ensure!(
        read_to_end(file).as_ref() == Ok(&bytes),
        "the file has other bytes"
    );
    // A write in the middle, across the end of a block, must leave the bytes around it.
    seek(file, BLOCK as u64 - 5).map_err(message)?;
    write(file, &[9; 10]).map_err(message)?;
    fsync(file).map_err(message)?;
    close(file);
    let file = open("a", 0).map_err(message)?;
    let mut expected = bytes;
    expected[BLOCK - 5..BLOCK + 5].fill(9);
    ensure!(
        read_to_end(file) == Ok(expected),
        "the file has other bytes after it was reopened"
    );
    close(file);
    unlink("a").map_err(message)
}

pub(crate) async fn files_are_listed_until_they_are_unlinked() -> Outcome {
    let before = list().map_err(message)?;
    for number in 0..5 {
        let file = fresh(&format!("listed {number}"))?;
        write(file, &pattern(number, number)).map_err(message)?;
        close(file);
    }
    let mut now = list().map_err(message)?;
    now.retain(|file| !before.contains(file));
    now.sort();
    let expected: Vec<_> = (0..5).map(|n| (format!("listed {n}"), n)).collect();
    ensure!(now == expected, "{now:?}");
    for number in 0..5 {
        unlink(&format!("listed {number}")).map_err(message)?;
    }
    ensure!(list() == Ok(before), "the list of files has changed");
    ensure!(
        unlink("listed 1") == Err(Error::NoFile),
        "a file can be unlinked twice"
    );
    Ok(())
}

pub(crate) async fn an_unlinked_file_stays_readable_while_open() -> Outcome {
    let file = fresh("gone")?;
    write(file, &pattern(3, 5_000)).map_err(message)?;
    unlink("gone").map_err(message)?;
    ensure!(
        open("gone", 0) == Err(Error::NoFile),
        "the unlinked file can be opened"
    );
    fsync(file).map_err(message)?;
    seek(file, 0).map_err(message)?;
    ensure!(
        read_to_end(file) == Ok(pattern(3, 5_000)),
        "the file has other bytes"
    );
    close(file);
    Ok(())
}

pub(crate) async fn wrong_calls_are_errors() -> Outcome {
    ensure!(
        open("no such file", 0) == Err(Error::NoFile),
        "the file exists"
    );
    ensure!(
        open("", 1) == Err(Error::BadArgument),
        "an empty name is accepted"
    );
    ensure!(
        open("a", 4) == Err(Error::BadArgument),
        "unknown flags are accepted"
    );
    let long = format!("{:65}", 1);
    ensure!(
        open(&long, 1) == Err(Error::BadArgument),
        "a long name is accepted"
    );
    let not_utf8 = [0xffu8; 2];
    let open_raw = |start: usize, len| sys::open(start, len, 1);
    let answer = open_raw(not_utf8.as_ptr() as usize, 2);
    ensure!(
        answer == Err(Error::BadArgument),
        "a name that is not UTF-8: {answer:?}"
    );
    ensure!(
        open_raw(16, 5) == Err(Error::BadAddress),
        "an unmapped name is accepted"
    );
    let pipe = pipe().map_err(message)?;
    ensure!(
        fsync(pipe.reader) == Err(Error::BadFile),
        "a pipe can be synced"
    );
    ensure!(
        seek(pipe.reader, 0) == Err(Error::BadFile),
        "a pipe has a position"
    );
    close(pipe.reader);
    close(pipe.writer);
    ensure!(
        fsync(77) == Err(Error::BadFile),
        "a closed descriptor can be synced"
    );
    let file = fresh("b")?;
    seek(file, 1).map_err(message)?;
    ensure!(
        write(file, b"x") == Err(Error::BadArgument),
        "a write beyond the end succeeded"
    );
    ensure!(size(file) == Ok(0), "the file has grown");
    seek(file, 0).map_err(message)?;
    for start in [16, 1 << 38, usize::MAX - 3] {
        let answers = [sys::read(file, start, 8), sys::write(file, start, 8)];
        ensure!(
            answers == [Err(Error::BadAddress); 2],
            "{start}: {answers:?}"
        );
        ensure!(
            sys::list(0, start, 8) == Err(Error::BadAddress),
            "list to {start}"
        );
    }
    // Only the first half of the buffer is mapped.
    let end = sys::map(1).map_err(message)? as usize + BLOCK;
    let answer = sys::write(file, end - 4, 8);
    ensure!(answer == Err(Error::BadAddress), "half a range: {answer:?}");
    ensure!(size(file) == Ok(0), "the file has grown");
    close(file);
    unlink("b").map_err(message)
}

/// The files have twice as many blocks as the cache.
pub(crate) async fn files_larger_than_the_cache_are_read_back() -> Outcome {
    const FILES: usize = 4;
    const LEN: usize = 40 * BLOCK + 100;
    for number in 0..FILES {
        let file = fresh(&format!("long {number}"))?;
        write(file, &pattern(number, LEN)).map_err(message)?;
        close(file);
    }
    for number in 0..FILES {
        let file = open(&format!("long {number}"), 0).map_err(message)?;
        let bytes = read_to_end(file).map_err(message)?;
        ensure!(
            bytes == pattern(number, LEN),
            "file {number} has other bytes"
        );
        // Write a byte of a block that is not in the cache.
        seek(file, BLOCK as u64 * 3 + 7).map_err(message)?;
        write(file, &[0xaa]).map_err(message)?;
        seek(file, BLOCK as u64 * 3).map_err(message)?;
        let mut part = [0; 16];
        read(file, &mut part).map_err(message)?;
        let mut expected = pattern(number, LEN)[3 * BLOCK..3 * BLOCK + 16].to_vec();
        expected[7] = 0xaa;
        ensure!(part[..] == expected[..], "file {number}: {part:?}");
        close(file);
        unlink(&format!("long {number}")).map_err(message)?;
    }
    Ok(())
}

pub(crate) async fn a_full_disk_is_an_error() -> Outcome {
    let file = fresh("full")?;
    let block = vec![1; 16 * BLOCK];
    let mut written = 0;
    let error = loop {
        match write(file, &block) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        ensure!(written < 1_000, "the disk is never full");
    };
    ensure!(error == Error::NoSpace, "{error}");
    // The disk has 1,024 blocks, of which files must be able to use a quarter or more.
    ensure!(written > 15, "full after {written} writes of 16 blocks");
    ensure!(
        open("another", 1) == Err(Error::NoSpace),
        "the full disk has room for another file"
    );
    close(file);
    unlink("full").map_err(message)?;
    let file = fresh("another")?;
    write(file, &block).map_err(message)?;
    close(file);
    unlink("another").map_err(message)
}

pub(crate) async fn a_position_is_shared_with_children() -> Outcome {
    let file = fresh("shared")?;
    let child = spawn("child", b"note from the child", &[0, file], 30).map_err(message)?;
    ensure!(wait(child) == Ok(0), "the child has failed");
    write(file, b", then ours").map_err(message)?;
    seek(file, 0).map_err(message)?;
    let bytes = read_to_end(file).map_err(message)?;
    ensure!(
        bytes == b"from the child, then ours",
        "{:?}",
        alloc::string::String::from_utf8_lossy(&bytes)
    );
    close(file);
    unlink("shared").map_err(message)
}

pub(crate) async fn open_files_are_charged_to_the_share() -> Outcome {
    let bounds = os_user::Bounds {
        level: 30,
        ceiling: 30,
        halvings: 5,
    };
    let hoard = spawn_within("files", b"hoard", &[0, 1], bounds).map_err(message)?;
    let status = wait(hoard);
    ensure!(status == Ok(0), "{status:?}");
    unlink("hoarded").map_err(message)
}

pub(crate) async fn programs_are_files() -> Outcome {
    // The runner has copied `child` to the disk.
    let child = spawn("bin/child", b"exit 7", &[], 30).map_err(message)?;
    ensure!(wait(child) == Ok(7), "another program has run");
    let missing = spawn("bin/none", b"", &[], 30);
    ensure!(missing == Err(Error::NoProgram), "{missing:?}");
    let file = fresh("text")?;
    write(file, b"this is no program").map_err(message)?;
    let text_spawned = spawn("text", b"", &[], 30);
    ensure!(text_spawned == Err(Error::BadProgram), "{text_spawned:?}");
    close(file);
    unlink("text").map_err(message)?;
    // A copy of a program is a program, too.
    let source = open("bin/child", 0).map_err(message)?;
    let bytes = read_to_end(source).map_err(message)?;
    close(source);
    let copy = fresh("bin/copy")?;
    write(copy, &bytes).map_err(message)?;
    close(copy);
    let child = spawn("bin/copy", b"exit 9", &[], 30).map_err(message)?;
    ensure!(wait(child) == Ok(9), "the copy is another program");
    unlink("bin/copy").map_err(message)
}

/// Neither `spawn` nor `exec` accepts a file that is not a program, or a missing path, and the
/// caller continues.
pub(crate) async fn other_files_are_not_programs() -> Outcome {
    for (name, expected) in [
        ("bin/truncated", Error::BadProgram),
        ("bin/large", Error::BadProgram),
        ("bin/empty", Error::BadProgram),
        ("notes/text", Error::BadProgram),
        ("bin/none", Error::NoProgram),
        ("bin", Error::NoProgram),
        ("notes/text/none", Error::NoProgram),
        ("/bin/child", Error::NoProgram),
    ] {
        let spawned = spawn(name, b"exit 0", &[], 30);
        ensure!(spawned == Err(expected), "spawn {name}: {spawned:?}");
        let error = exec(name, b"exit 0");
        ensure!(error == expected, "exec {name}: {error:?}");
    }
    Ok(())
}

/// Returns the status of a child that executes a program of the disk, or `None` if the fork failed
/// because the host was busy.
fn child_becomes(
    program: &str,
    argument: &str,
    kill_after: Option<u64>,
) -> Result<Option<isize>, Error> {
    match fork() {
        Ok(Fork::Child) => {
            let _ = exec(program, argument.as_bytes());
            exit(99)
        }
        Ok(Fork::Parent(child)) => {
            if let Some(micros) = kill_after {
                sleep_micros(micros);
                sys::kill(child)?;
            }
            wait(child).map(Some)
        }
        Err(Error::Busy) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn exec_takes_a_program_of_the_disk() -> Outcome {
    let status = child_becomes("bin/child", "exit 11", None).map_err(message)?;
    ensure!(matches!(status, Some(11) | None), "{status:?}");
    Ok(())
}

/// The kill arrives before the program is read, while it is read, or afterwards.
pub(crate) async fn exec_of_a_program_of_the_disk_ends_when_it_is_killed() -> Outcome {
    for n in 0..24 {
        let status = child_becomes("bin/child", "endless", Some(n * 300)).map_err(message)?;
        ensure!(matches!(status, Some(KILLED) | None), "{n}: {status:?}");
    }
    Ok(())
}

pub(crate) async fn directories_come_and_go_with_their_files() -> Outcome {
    let entry = |name: &str, size| Entry {
        name: name.into(),
        size,
    };
    for name in ["d/a", "d/e/b", "d/e/f/c"] {
        close(fresh(name)?);
    }
    let all = directory("d").map_err(message)?;
    ensure!(all == [entry("a", Some(0)), entry("e", None)], "{all:?}");
    let nested = directory("d/e").map_err(message)?;
    ensure!(
        nested == [entry("b", Some(0)), entry("f", None)],
        "{nested:?}"
    );
    let root = directory("").map_err(message)?;
    ensure!(root.contains(&entry("d", None)), "{root:?}");
    for (path, expected) in [("d/a", Error::NotDirectory), ("e", Error::NoFile)] {
        let listed = directory(path);
        ensure!(listed == Err(expected), "{path}: {listed:?}");
    }
    for (path, expected) in [
        ("d", Error::IsDirectory),
        ("d/e", Error::IsDirectory),
        ("d/a/x", Error::NotDirectory),
        ("d//x", Error::BadArgument),
        ("/d", Error::BadArgument),
        ("d/..", Error::BadArgument),
    ] {
        let opened = open(path, 1);
        ensure!(opened == Err(expected), "{path}: {opened:?}");
    }
    ensure!(
        unlink("d/e") == Err(Error::IsDirectory),
        "the directory is unlinked"
    );
    for name in ["d/a", "d/e/b", "d/e/f/c"] {
        unlink(name).map_err(message)?;
    }
    ensure!(
        directory("d") == Err(Error::NoFile),
        "the empty directory still exists"
    );
    // The name is free again for a file.
    close(fresh("d")?);
    unlink("d").map_err(message)
}
