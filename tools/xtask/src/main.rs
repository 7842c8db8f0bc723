//! `cargo xtask`: set the machine up, run the test suite, run the benchmarks.
//!
//! This crate depends on no other crate of the project, so that it builds and reports even if one
//! of them does not build.
//!
//! `run` starts processes and ends them within a time limit. `setup` installs the required tools,
//! and `packages` the Debian packages. `host` asks the kernel for its capabilities. `steps` lists
//! the steps of the test suite; `suite` runs them and counts the results. `package` builds a Debian
//! package and a container image, and `book` a book of the documentation. `cpp` builds and tests
//! the C++ headers, `compat` tests code written for tokio, and `confine` runs a program without
//! io_uring. `bench` starts the benchmark driver. `os` and `mpi` build and test the separate
//! workspaces kernel/ and mpi/.

#![forbid(unsafe_code)]

mod bench;
mod book;
mod compat;
mod confine;
mod cpp;
mod example_commands;
mod host;
mod install;
mod layout;
mod mpi;
mod os;
mod package;
mod packages;
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
    /// Install missing tools, or print the command that installs them
    ///
    /// Rust components and targets come from rustup, Debian packages from apt-get when the user is
    /// root. Tools that are present are left alone and cause no download. Fails when a tool that
    /// the tests need is still missing.
    Setup,

    /// Run the test suite
    ///
    /// Installs the tests' requirements first (nightly Rust only with CI=true), then runs every
    /// step, even after a failure. Without --full it takes about twelve minutes: formatting, lints,
    /// tests, the shortest models, one run of the kernel. The output of each step goes to
    /// target/xtask/STEP.log; that of a failed step is printed too. A skipped step is no pass: it
    /// is listed with its reason. The last line is `N passed, N failed, N skipped`; the exit status
    /// is 0 when no step failed.
    Test(suite::Options),

    /// Run long versions of the tests
    ///
    /// A million generated cases of the simulator against the laws of the scheduler, and more. The
    /// report has the form of `test`.
    Soak {
        /// Run only these steps
        #[arg(value_name = "STEP", value_parser = suite::find_soak)]
        steps: Vec<&'static step::Step>,

        /// Print the output of the steps as it arrives
        #[arg(long, short)]
        verbose: bool,

        /// End after this time; a step that has not run by then has failed
        #[arg(long, value_name = "N", default_value_t = 60)]
        minutes: u64,
    },

    /// The kernel in kernel/: build it and boot it in QEMU
    ///
    /// `cargo xtask os -- run --smp 2` boots it to a shell on the terminal,
    /// `cargo xtask os -- test --smp 1,2,4` tests it, `cargo xtask os -- bench` counts
    /// instructions; `cargo xtask os -- --help` says more.
    Os {
        /// Arguments for the runner
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Upshift on Open MPI, mpi/: install or name missing packages, build it, test it
    ///
    /// `cargo xtask mpi bench` measures it on 1, 2 and 4 ranks, in about five minutes;
    /// `cargo xtask mpi bench --quick` takes one minute and shows that the command works.
    Mpi {
        /// `bench`, and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// The C ABI and the C++20 headers: build, test, install into a prefix
    ///
    /// Uses g++ and clang++ where they are installed; installs missing Debian packages when the
    /// user is root, or names them.
    Cpp {
        /// Folder to install into (default: target/cpp/prefix)
        #[arg(long, value_name = "DIR")]
        prefix: Option<PathBuf>,
    },

    /// Build a Debian package or a container image of the command
    ///
    /// The package installs the command, units, default configuration, man pages and completions.
    /// The image serves /srv on port 8080 and is built without a container engine. As root both are
    /// tried afterwards, each in its own file tree.
    Package {
        /// Form of the package
        #[arg(value_enum, default_value = "deb")]
        form: package::Form,
    },

    /// Test code that is written for tokio on Upshift
    ///
    /// Needs access to the package registry.
    Compat {
        #[command(subcommand)]
        task: compat::Compat,
    },

    /// Run a program where io_uring is forbidden, as in a container
    ///
    /// `cargo xtask confine -- cargo run --example echo`. Needs no privileges: the process sets a
    /// filter of system calls on itself.
    Confine {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        program: Vec<std::ffi::OsString>,
    },

    /// Make a book of README, ARCHITECTURE.md and docs/: target/xtask/book/html
    ///
    /// Checks the links first. Needs mdbook.
    Book {
        /// Install mdbook with cargo if it is missing (takes a few minutes)
        #[arg(long)]
        install: bool,
    },

    /// Build everything with --release and run the benchmarks against other runtimes
    ///
    /// Calls the driver of bench/, which builds the peers, checks that all answer with the same
    /// bytes and measures them in turn. `cargo xtask bench -- --help` shows its own options;
    /// `cargo xtask bench --full` measures all sections, MPI and the kernel at one commit, and
    /// resumes after an interruption;
    /// `cargo xtask bench --compare COMMIT` measures this tree beside a commit;
    /// `cargo xtask bench drop --only A,B` deletes the results of sections,
    /// `cargo xtask bench render` writes the page again.
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
        Task::Compat { task } => compat::command(&root, &task),
        Task::Confine { program } => confine::command(&program),
        Task::Book { install } => book::command(&root, install),
        Task::Bench { args } => bench::command(&root, &args),
    }
}

/// Returns the root of the repository: the folder above this crate.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}
