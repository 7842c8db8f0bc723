//! Applies the changes that a seed determines (see [`os_files::load`]), for tests with power cuts.

use os_files::load::{self, Change};
use os_user::files::{CREATE, fsync, list, open, read_to_end, seek, size, unlink};
use os_user::{Error, println, write};

use crate::close;

/// Number of changes between two syncs.
const SYNC_INTERVAL: u64 = 7;

/// Applies changes until the machine is stopped.
pub(crate) fn run(seed: u64) -> Result<(), Error> {
    let synced = open("synced", CREATE)?;
    println!("changing");
    for n in 0.. {
        let (name, change) = load::change(seed, n);
        if change == Change::Unlink {
            match unlink(&name) {
                Ok(()) | Err(Error::NoFile) => {}
                Err(error) => return Err(error),
            }
        } else {
            let file = open(&name, CREATE)?;
            if let Change::Write { part, len, first } = change {
                let (offset, bytes) = load::write(size(file)?, part, len, first);
                seek(file, offset)?;
                write(file, &bytes)?;
            }
            close(file);
        }
        if n % SYNC_INTERVAL == SYNC_INTERVAL - 1 {
            fsync(synced)?;
            println!("synced {}", n + 1);
        }
    }
    Ok(())
}

/// Prints the name, the length and the checksum of each file.
pub(crate) fn print_sums() -> Result<(), Error> {
    for (name, size) in list()? {
        let file = open(&name, 0)?;
        let bytes = read_to_end(file)?;
        close(file);
        let sum = bytes.iter().fold(0u64, |sum, byte| {
            sum.wrapping_mul(1_099_511_628_211) ^ u64::from(*byte)
        });
        println!("file {name}: {size} {sum:x}");
    }
    Ok(())
}
