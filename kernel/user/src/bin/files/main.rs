//! Tests of files on the disk, as user programs see them. Without an argument, the program runs the
//! tests. `changes-SEED` applies pseudo-random changes until the machine is stopped, and reports
//! the synced ones; `sums` prints the checksums of the files; `hoard` opens a file until the kernel
//! refuses.

#![no_std]
#![no_main]

extern crate alloc;

mod changes;
mod concurrent;
mod contents;

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use os_user::files::{CREATE, TRUNCATE, open};
use os_user::testing::run_all;
use os_user::{Error, sys};

os_user::coroutine_entry!(main);

os_user::tests! {
    written_bytes_are_read,
    files_are_listed_until_they_are_unlinked,
    an_unlinked_file_stays_readable_while_open,
    wrong_calls_are_errors,
    files_larger_than_the_cache_are_read_back,
    a_full_disk_is_an_error,
    a_position_is_shared_with_children,
    open_files_are_charged_to_the_share,
    programs_are_files,
    other_files_are_not_programs,
    exec_takes_a_program_of_the_disk,
    exec_of_a_program_of_the_disk_ends_when_it_is_killed,
    directories_come_and_go_with_their_files,
    both_forms_give_the_same_result,
    writers_of_all_levels_make_progress,
    an_urgent_read_overtakes_others,
    a_dropped_read_leaves_nothing_behind,
    syncs_share_a_commit,
}

use concurrent::*;
use contents::*;

async fn main() -> isize {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    let outcome = match argument.split_once('-').unwrap_or((argument, "")) {
        ("changes", seed) => changes::run(seed.parse().unwrap_or(1)),
        ("sums", _) => changes::print_sums(),
        ("hoard", _) => return hoard(),
        _ => return run_all(TESTS).await,
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            os_user::println!("files: {argument}: {error}");
            1
        }
    }
}

/// Opens a file until the kernel refuses, which must be for lack of memory or of descriptors.
fn hoard() -> isize {
    for _ in 0..20_000 {
        match open("hoarded", CREATE) {
            Ok(_) => {}
            Err(Error::OutOfMemory | Error::TooMany) => return 0,
            Err(_) => return 1,
        }
    }
    2
}

/// Creates or truncates the file `name`, and returns its descriptor.
fn fresh(name: &str) -> Result<usize, alloc::string::String> {
    open(name, CREATE | TRUNCATE).map_err(|error| format!("{name}: {error}"))
}

fn close(file: usize) {
    let _ = sys::close(file);
}

/// Returns `len` bytes that depend on `number`, to recognize the contents of a file.
fn pattern(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (index / 3 + number * 7) as u8;
    }
    bytes
}
