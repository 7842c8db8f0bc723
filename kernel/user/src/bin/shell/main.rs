//! A shell on the console: files of the disk, programs at levels, processes and harts.
//! `cargo xtask os -- run` starts this program first, and the machine stops when it exits.
//!
//! The shell has level 0 and starts no program that is as urgent. So no program can keep it from
//! answering, or from killing a program on Ctrl-C. While a program runs in the foreground, lines of
//! the console are its input; the shell reads the lines that the program leaves.

#![no_std]
#![no_main]

extern crate alloc;

mod commands;
mod console;
mod jobs;
mod top;

use os_user::coroutine::{current, reprio};
use os_user::println;

use console::{Console, Typed};

os_user::coroutine_entry!(main);

const LEVEL: u8 = 0;

async fn main() -> isize {
    reprio(current(), LEVEL);
    println!("Upshift: `help` lists the commands, `exit` ends the machine.");
    let mut console = Console::new();
    loop {
        match console.line("$ ").await {
            Typed::Line(line) if line.trim() == "exit" => return 0,
            Typed::Line(line) => commands::run(&mut console, line.trim()).await,
            Typed::Interrupt => {}
            Typed::End => return 0,
        }
    }
}
