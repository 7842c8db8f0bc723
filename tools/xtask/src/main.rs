//! `cargo xtask`: set the machine up, run the test suite, run the benchmarks.
//!
//! It stands outside the house: it depends on no crate of the project, so that it builds and
//! reports even when one of them does not. `run` starts processes and ends them in time, `setup`
//! knows what must be installed and `packages` what of Debian, `host` asks the kernel what it
//! can do, `package` builds a Debian package and a container image, `steps` is the list of what
//! is tested, `suite` runs that list and counts, `cpp` builds and tests the headers of C++,
//! `book` makes a book of the pages, `compat` counts what of tokio runs, `confine` runs a
//! program without io_uring, `bench` calls the benchmark driver, `os` and `mpi` the workspaces
//! of these names.

#![forbid(unsafe_code)]

mod bench;
mod book;
mod compat;
mod confine;
mod cpp;
mod host;
mod install;
mod layout;
mod mpi;
mod os;
mod package;
mod packages;
mod printed;
mod run;
mod setup;
mod step;
mod steps;
mod suite;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Set the machine up, test the project, measure it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what is missing, or print the command that does
    ///
    /// Rust components and targets come by rustup, Debian packages by apt-get when the user is root. What is already
    /// there is left alone and nothing is downloaded for it. Fails when something the tests need is still missing.
    Setup,

    /// Run the test suite
    ///
    /// Installs what the tests need first (nightly Rust only with CI=true), then runs every step, also after one has
    /// failed. Without --full it takes about twelve minutes: formatting, lints, tests, the shortest models, one run of the kernel. The output of each step goes to target/xtask/STEP.log; that of a failed step is printed too. A skipped
    /// step is no pass: it is listed with its reason. The last line is `N passed, N failed, N skipped`; the exit
    /// status is 0 when no step failed.
    Test(suite::Options),

    /// Run for long what the test suite runs for seconds
    ///
    /// A million generated cases of the simulator against the laws of the scheduler, and more. Same report as `test`.
    Soak {
        /// Run only these steps
        #[arg(value_name = "STEP", value_parser = suite::find_soak)]
        steps: Vec<&'static step::Step>,

        /// Print the output of the steps as it comes
        #[arg(long, short)]
        verbose: bool,

        /// End after this long; what has not run by then has failed
        #[arg(long, value_name = "N", default_value_t = 60)]
        minutes: u64,
    },

    /// The kernel of kernel/: build it and boot it in QEMU
    ///
    /// `cargo xtask os -- run --smp 2` boots it to a shell on the terminal,
    /// `cargo xtask os -- test --smp 1,2,4` tests it, `cargo xtask os -- bench` counts instructions;
    /// `cargo xtask os -- --help` says more.
    Os {
        /// Arguments for the runner
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Upshift on Open MPI, mpi/: install or name what is missing, build it, test it
    ///
    /// `cargo xtask mpi bench` measures it on 1, 2 and 4 ranks, in about five minutes; `cargo xtask mpi bench --quick` shows in one
    /// that the command works.
    Mpi {
        /// `bench`, and arguments for it
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// The C ABI and the headers of C++20: build, test, install into a prefix
    ///
    /// Uses g++ and clang++ as far as they are there; installs missing Debian packages when the user is root, or names them.
    Cpp {
        /// Where to install to (default: target/cpp/prefix)
        #[arg(long, value_name = "DIR")]
        prefix: Option<PathBuf>,
    },

    /// Build a Debian package or a container image of the command
    ///
    /// The package installs the command, units, default configuration, man pages and
    /// completions. The image serves /srv on port 8080 and needs no container engine to be
    /// built. As root both are tried afterwards, each in a tree of its own.
    Package {
        /// The form of the package
        #[arg(value_enum, default_value = "deb")]
        form: package::Form,
    },

    /// How much of what is written for tokio runs on Upshift
    ///
    /// Needs the registry.
    Compat {
        #[command(subcommand)]
        what: compat::Compat,
    },

    /// Run a program where io_uring is forbidden, as in a container
    ///
    /// `cargo xtask confine -- cargo run --example echo`. Needs no rights: the process sets a filter of system calls on itself.
    Confine {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        program: Vec<std::ffi::OsString>,
    },

    /// Make a book of README, ARCHITECTURE.md and docs/: target/xtask/book/html
    ///
    /// Checks the links first. Needs mdbook.
    Book {
        /// Install mdbook by cargo if it is missing: some minutes
        #[arg(long)]
        install: bool,
    },

    /// Build everything with --release and run the benchmarks against other runtimes
    ///
    /// Calls the driver of bench/, which builds the peers, checks that all answer with the same bytes and measures
    /// them in turn. `cargo xtask bench -- --help` shows its own options; `cargo xtask bench --compare COMMIT` measures this tree
    /// beside a commit; `cargo xtask bench drop --only A,B` forgets what is known of sections, `cargo xtask bench render` writes the page again.
    Bench {
        /// `drop` or `render`, or arguments for the driver's `run`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let root = root();
    match Cli::parse().task {
        Task::Setup => setup::command(&root),
        Task::Test(options) => suite::command(&root, &options),
        Task::Soak {
            steps,
            verbose,
            minutes,
        } => suite::soak(&root, steps, verbose, minutes),
        Task::Os { args } => bench::os(&root, &args),
        Task::Mpi { args } => mpi::command(&root, &args),
        Task::Cpp { prefix } => cpp::command(&root, prefix),
        Task::Package { form } => package::command(&root, form),
        Task::Compat { what } => compat::command(&root, &what),
        Task::Confine { program } => confine::command(&program),
        Task::Book { install } => book::command(&root, install),
        Task::Bench { args } => bench::command(&root, &args),
    }
}

/// The root of the repository: the folder above this crate.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}
