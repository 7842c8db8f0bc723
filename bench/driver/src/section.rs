//! Names, titles and time limits of the sections of the benchmark page. The module `sections`
//! implements them.

use std::time::Duration;

/// A section of the benchmark page, which can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// HTTP/1.1 keep-alive, one request at a time per connection.
    Plaintext,
    /// Plaintext with 16 requests in flight per connection.
    Pipelined,
    /// A server of matrix products; each connection sends its next request after the reply.
    Matrix,
    /// One connection, served by coroutines and by threads.
    Single,
    /// More vCPUs than CPUs.
    Vcpus,
    /// Servers whose requests have eight levels of urgency and arrive faster than they are served.
    Levels,
    /// Figures of papers about other systems, reproduced in the form of those papers.
    Papers,
    /// Long requests among short ones, with and without preemption.
    Preemption,
    /// An urgent server beside a batch process, with and without the daemon.
    Processes,
    /// Servers without changes to their code, beside a batch process: what the kernel's scheduling
    /// options achieve, and what the daemon achieves.
    Assign,
    /// Processes that are scheduled by a policy in user space.
    Sched,
    /// Web servers: axum, a mixed load at overload, and files.
    Serve,
    /// Reads of files, with blocking and with non-blocking calls.
    Files,
    /// Servers in C++, beside the runtime in Rust and other C++ libraries.
    Cpp,
    Micro,
    /// Waits of ready tasks while their worker computes and another worker is idle.
    Conserve,
    /// Microbenchmarks on two workers.
    Multi,
}

impl Section {
    /// All sections, in the order of the page.
    pub(crate) const ALL: [Section; 17] = [
        Section::Plaintext,
        Section::Pipelined,
        Section::Matrix,
        Section::Single,
        Section::Vcpus,
        Section::Levels,
        Section::Papers,
        Section::Preemption,
        Section::Processes,
        Section::Assign,
        Section::Sched,
        Section::Serve,
        Section::Files,
        Section::Cpp,
        Section::Micro,
        Section::Conserve,
        Section::Multi,
    ];

    /// Returns the section's name (on the command line, and for the file in `results/`), its title
    /// on the page, and the time limit in minutes, after which the remaining rounds of measurement
    /// are skipped.
    fn description(self) -> (&'static str, &'static str, u64) {
        match self {
            Section::Plaintext => ("plaintext", "Plaintext, HTTP/1.1 keep-alive", 10),
            Section::Pipelined => (
                "pipelined",
                "Plaintext, 16 requests in flight per connection",
                3,
            ),
            Section::Matrix => ("matrix", "Matrix server, closed loop", 18),
            Section::Single => ("single", "One connection, closed loop", 2),
            Section::Vcpus => ("vcpus", "More vCPUs than CPUs", 1),
            Section::Levels => ("levels", "Eight levels at overload", 2),
            Section::Papers => ("papers", "The figures of the published systems", 24),
            Section::Preemption => ("preemption", "Long requests among short ones", 11),
            Section::Processes => ("processes", "An urgent server beside a batch process", 2),
            Section::Assign => ("assign", "Unmodified servers beside a batch process", 5),
            Section::Sched => ("sched", "Processes under policies in user space", 3),
            Section::Serve => ("serve", "Web servers", 8),
            Section::Files => ("files", "Files", 10),
            Section::Cpp => ("cpp", "Servers in C++", 3),
            Section::Micro => ("micro", "Microbenchmarks", 6),
            Section::Conserve => (
                "conserve",
                "Beside a worker that computes, while another one idles",
                3,
            ),
            Section::Multi => ("multi", "Microbenchmarks on two workers", 2),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.description().0
    }

    pub(crate) fn title(self) -> &'static str {
        self.description().1
    }

    /// Returns the time after which the remaining rounds of measurement are skipped.
    pub(crate) fn limit(self) -> Duration {
        Duration::from_secs(60 * self.description().2)
    }

    /// Whether programs of the section (such as the daemon) need the kernel's reports of started
    /// and ended processes.
    pub(crate) fn needs_process_events(self) -> bool {
        matches!(self, Section::Processes | Section::Assign | Section::Sched)
    }
}
