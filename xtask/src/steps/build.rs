//! What is built and looked at without being run: formatting, lints, documentation, other targets; and instructions counted.

use super::{all, cargo, minutes, need, passed};
use crate::book;
use crate::mpi;
use crate::os;
use crate::packages;
use crate::setup::{BARE_TARGET, Tool};
use crate::suite::{Context, Done, Verdict};

fn has_bench(context: &Context<'_>) -> bool {
    context.root.join("bench/Cargo.toml").exists()
}

pub(super) fn fmt(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Rustfmt);
    let check = |manifest: &'static str| {
        let args = ["fmt", "--all", "--check", "--manifest-path", manifest];
        // rustfmt colours its differences even when they go to a file.
        let plain = ["--", "--color", "never"];
        context.run(cargo(context, args.into_iter().chain(plain)), minutes(1))
    };
    let bench = has_bench(context).then_some("bench/Cargo.toml");
    let programs = [
        "Cargo.toml",
        "compat/programs/Cargo.toml",
        "examples/service/Cargo.toml",
    ];
    let manifests = programs.into_iter().chain(bench);
    all(manifests
        .map(check)
        .chain([os::fmt(context), mpi::fmt(context)]))?;
    passed()
}

pub(super) fn clippy(context: &Context<'_>) -> Verdict {
    need!(context, Tool::Clippy);
    context.run(
        cargo(
            context,
            [
                "clippy",
                "--workspace",
                "--all-targets",
                "--keep-going",
                "--",
                "-D",
                "warnings",
            ],
        ),
        minutes(8),
    )?;
    if !context.tools.has(Tool::BareTarget) {
        let absence = Tool::BareTarget.absence();
        return Ok(Done::Skipped(format!(
            "{absence}: not os/, the rest passed"
        )));
    }
    os::clippy(context)?;
    passed()
}

pub(super) fn no_std(context: &Context<'_>) -> Verdict {
    need!(context, Tool::BareTarget);
    context.run(
        cargo(
            context,
            ["build", "-p", "upshift-core", "--target", BARE_TARGET],
        ),
        minutes(3),
    )?;
    passed()
}

pub(super) fn docs(context: &Context<'_>) -> Verdict {
    let mut command = cargo(context, ["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    context.run(command, minutes(5))?;
    let links = book::check_links(context.root)?;
    Ok(Done::Passed(format!("{links} links")))
}

/// `crates/counts` against its table.
pub(super) fn counts(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(reason.clone()));
    }
    if !packages::VALGRIND.is_there() {
        return Ok(Done::Skipped(packages::VALGRIND.absence()));
    }
    let args = ["run", "--release", "-p", "upshift-counts", "--", "check"];
    context.run(cargo(context, args), minutes(10))?;
    passed()
}

pub(super) fn bench(context: &Context<'_>) -> Verdict {
    if !has_bench(context) {
        return Ok(Done::Skipped("no bench/Cargo.toml".to_owned()));
    }
    let driver = ["--manifest-path", "bench/Cargo.toml", "-p", "upshift-bench"];
    context.run(
        cargo(
            context,
            ["check", "--all-targets"].into_iter().chain(driver),
        ),
        minutes(7),
    )?;
    passed()
}
