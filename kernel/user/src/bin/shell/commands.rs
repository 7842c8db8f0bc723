//! The commands of the shell, and their error messages.

use os_user::files::{CREATE, TRUNCATE, directory, fsync, open, unlink};
use os_user::status::{ProcessStatus, processes, programs};
use os_user::{Error, println, read, sys, write};

use crate::console::Console;
use crate::jobs::{Job, LEAST_URGENT, MOST_URGENT};
use crate::top;

const HELP: &str = "\
PROGRAM [ARGUMENT] [&]       runs a program of the archive, or of the disk: NAME is also bin/NAME;
                             with & in the background. Ctrl-C kills it, Ctrl-D ends its input
nice LEVEL PROGRAM ...       runs it no more urgent than LEVEL: 1, most urgent, to 62
programs                     lists the programs of the archive
ps                           lists the processes and their levels
top [SECONDS]                shows what harts and levels did in each second
kill PROCESS                 ends a program
ls [DIRECTORY]               lists files
cat FILE                     prints a file
put FILE TEXT                writes a file; its directory need not exist
rm FILE                      removes a file
exit                         ends the machine; so does Ctrl-D";

/// Number of bytes that `cat` reads at once.
const CHUNK: usize = 1024;

pub(crate) async fn run(console: &mut Console, line: &str) {
    let (word, rest) = split(line);
    let outcome = match word {
        "" => Ok(()),
        "help" => {
            println!("{HELP}");
            Ok(())
        }
        "programs" => programs().map(|all| all.iter().for_each(|name| println!("{name}"))),
        "ps" => ps(),
        "top" => return show_top(rest).await,
        "kill" => return kill(rest),
        "ls" => ls(rest.trim_end_matches('/')),
        "cat" => cat(rest),
        "put" => put(rest),
        "rm" => unlink(rest),
        "nice" => return nice(console, rest).await,
        _ => return start(console, line, None).await,
    };
    if let Err(error) = outcome {
        report(line, error);
    }
}

fn split(line: &str) -> (&str, &str) {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    (word, rest.trim_start())
}

/// Prints the error of a command, and a remedy.
fn report(command: &str, error: Error) {
    let hint = match error {
        Error::DiskFailed => "; boot with --disk FILE",
        Error::NoProgram => "; `programs` and `ls bin` list programs, `help` lists commands",
        Error::NoFile => "; `ls` lists the files",
        Error::IsDirectory => "; `ls` lists its files",
        Error::BadArgument => "; a name has 1 to 64 bytes, its parts separated by single slashes",
        Error::NoSpace => "; `rm FILE` makes room",
        Error::OutOfMemory | Error::TooMany => "; `ps` lists the processes, `kill` ends one",
        _ => "",
    };
    println!("{command}: {error}{hint}");
}

fn ps() -> Result<(), Error> {
    println!("process parent level ceiling threads state    program");
    for process in processes()? {
        let state = match process {
            ProcessStatus { ended: 1.., .. } => "ended",
            ProcessStatus { running: 1.., .. } => "running",
            ProcessStatus { ready: 1.., .. } => "ready",
            _ => "waits",
        };
        println!(
            "{:>7} {:>6} {:>5} {:>7} {:>7} {state:<8} {}",
            process.number,
            process.parent,
            process.level,
            process.ceiling,
            process.threads,
            process.name(),
        );
    }
    Ok(())
}

async fn show_top(seconds: &str) {
    let seconds = match seconds {
        "" => Some(1),
        text => text
            .parse()
            .ok()
            .filter(|seconds| (1..=3_600).contains(seconds)),
    };
    let Some(seconds) = seconds else {
        println!("top: give a number of seconds from 1 to 3600, for example `top 5`");
        return;
    };
    for _ in 0..seconds {
        if let Err(error) = top::show().await {
            return report("top", error);
        }
    }
}

fn kill(process: &str) {
    let Ok(number) = process.parse() else {
        println!("kill: give the number of a process, as `ps` shows it, for example `kill 513`");
        return;
    };
    if let Err(error) = sys::kill(number) {
        println!("kill {number}: {error}: the shell kills only programs that it has started");
    }
}

fn ls(path: &str) -> Result<(), Error> {
    for entry in directory(path)? {
        match entry.size {
            Some(size) => println!("{size:>9} {}", entry.name),
            None => println!("{:>9} {}/", "", entry.name),
        }
    }
    Ok(())
}

/// Prints a file of any length in parts; stops at a part that contains a zero byte.
fn cat(name: &str) -> Result<(), Error> {
    let file = open(name, 0)?;
    let mut part = [0; CHUNK];
    let mut last = b'\n';
    let outcome = loop {
        let part = match read(file, &mut part) {
            Ok(0) => break Ok(()),
            Ok(count) => &part[..count],
            Err(error) => break Err(error),
        };
        if part.contains(&0) {
            println!("cat {name}: the file is not text");
            break Ok(());
        }
        last = part[part.len() - 1];
        if let Err(error) = write(1, part) {
            break Err(error);
        }
    };
    if last != b'\n' {
        println!("");
    }
    sys::close(file)?;
    outcome
}

/// Writes a whole file, and waits until it is durable.
fn put(rest: &str) -> Result<(), Error> {
    let (name, text) = split(rest);
    let file = open(name, CREATE | TRUNCATE)?;
    let outcome = write(file, text.as_bytes())
        .and_then(|_| write(file, b"\n"))
        .and_then(|_| fsync(file));
    sys::close(file)?;
    outcome
}

async fn nice(console: &mut Console, rest: &str) {
    let (level, line) = split(rest);
    let level = level.parse().ok();
    match level.filter(|level| (MOST_URGENT..=LEAST_URGENT).contains(level)) {
        Some(level) if !line.is_empty() => start(console, line, Some(level)).await,
        _ => println!(
            "nice: give a level from {MOST_URGENT}, most urgent, to {LEAST_URGENT}, and a program, \
             for example `nice 40 figures`"
        ),
    }
}

async fn start(console: &mut Console, line: &str, level: Option<u8>) {
    let (command, in_background) = match line.strip_suffix('&') {
        Some(command) => (command.trim_end(), true),
        None => (line, false),
    };
    let (program, argument) = split(command);
    let job = Job {
        program,
        argument,
        level,
        in_background,
    };
    if let Err(error) = job.run(console).await {
        report(program, error);
    }
}
