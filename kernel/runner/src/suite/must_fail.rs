//! Machines that must fail, and images that the kernel must refuse.

use super::{Run, run_of};
use crate::build::{self, VDSO};
use crate::elf_patch;

/// Returns runs in which the machine must fail.
pub(super) fn failures() -> Vec<Run> {
    let panicking = |fault: &str| Run {
        status: 101,
        last: "upshift: kernel panicked",
        ..run_of(format!("{fault} fails"), 1, &format!("selftest={fault}"))
    };
    let mut runs: Vec<_> = ["panic", "overflow", "text"].map(panicking).into();
    runs.push(Run {
        status: 2,
        last: "upshift: none ended with 2",
        ..run_of("a missing program fails".to_owned(), 1, "init=none")
    });
    let misspelt = |words: &str, last| Run {
        status: 2,
        last,
        ..run_of(format!("{words} fails"), 1, words)
    };
    runs.extend([
        misspelt(
            "init=tests thread=1024",
            "upshift: unknown argument `thread=1024` on the command line",
        ),
        misspelt(
            "init=tests trace=all",
            "upshift: trace=all: the value must be a number from 1",
        ),
    ]);
    let mut old = Run {
        status: 2,
        last: "upshift: this processor lacks",
        ..run_of("an old processor fails".to_owned(), 2, "init=tests")
    };
    old.machine.cpu = "rv64,zbb=off";
    runs.push(old);
    runs
}

/// Returns the images that the kernel must refuse, with the expected reasons.
pub(super) fn refusals() -> Result<Vec<Run>, String> {
    let refused = |name: &str, last, change: fn(Vec<u8>) -> Vec<u8>| {
        let image = build::variant(name, |file, bytes| match file {
            VDSO => change(bytes),
            _ => bytes,
        })?;
        Ok::<_, String>(Run {
            image: Some(image),
            status: 2,
            last,
            ..run_of(format!("vdso {name} is refused"), 1, "init=tests")
        })
    };
    Ok(vec![
        refused(
            "without upshift_wake",
            "upshift: the vDSO lacks the function upshift_wake; build the image again",
            |file| elf_patch::without_symbol(file, "upshift_wake"),
        )?,
        refused(
            "with writable text",
            "upshift: the vDSO is malformed: a segment is too large, or writable code",
            elf_patch::with_writable_text,
        )?,
        refused(
            "with a relocation outside data",
            "upshift: the vDSO is malformed: a relocation is not in data",
            elf_patch::with_relocation_outside_data,
        )?,
        refused(
            "that is no ELF file",
            "upshift: the vDSO is malformed: not a RISC-V shared object",
            |_| b"nonsense".to_vec(),
        )?,
    ])
}
