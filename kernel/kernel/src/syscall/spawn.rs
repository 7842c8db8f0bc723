//! Starts programs: programs of the archive at once, files of the disk when they have been read.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::{Error, ProcessInfo, SpawnRequest};
use upshift_core::Level;

use super::Answer;
use super::later::CallStart;
use super::now::{MAX_NAME, bytes, parse_level, words};
use crate::executor::LEAST_URGENT_WORK;
use crate::memory::user::UserSlice;
use crate::process::{self, File, MAX_PASSED, Process, Spawn};
use crate::{archive, storage};

struct Parameters {
    name: String,
    argument: Vec<u8>,
    files: Vec<File>,
    level: Level,
    ceiling: Level,
    halvings: u32,
}

impl Parameters {
    fn read(process: &Process, request: usize) -> Result<Parameters, Error> {
        let space = process.space()?;
        let slice = UserSlice::new(request, size_of::<SpawnRequest>())?;
        let mut raw = [0; size_of::<SpawnRequest>()];
        space.read(slice, &mut raw)?;
        let mut request = [0; SpawnRequest::WORDS];
        for (field, word) in request.iter_mut().zip(words(&raw)) {
            *field = word;
        }
        let request = SpawnRequest::from_words(request);
        let name = bytes(&space, request.program, MAX_NAME)?;
        let name = String::from_utf8(name).map_err(|_| Error::NoProgram)?;
        let argument = bytes(&space, request.argument, ProcessInfo::ARGUMENT)?;
        let list = bytes(&space, request.files, 8 * MAX_PASSED)?;
        let mut files = Vec::with_capacity(MAX_PASSED);
        for descriptor in words(&list) {
            files.push(process.file(descriptor as usize)?);
        }
        let (level, ceiling) = (parse_level(request.level)?, parse_level(request.ceiling)?);
        if ceiling < process.ceiling || level < ceiling {
            return Err(Error::TooUrgent);
        }
        if level > LEAST_URGENT_WORK {
            return Err(Error::BadArgument);
        }
        Ok(Parameters {
            name,
            argument,
            files,
            level,
            ceiling,
            halvings: u32::try_from(request.halvings).unwrap_or(u32::MAX),
        })
    }

    fn start(self, process: &Process, program: &[u8]) -> Answer {
        let child = process::spawn(Spawn {
            name: &self.name,
            program,
            argument: &self.argument,
            files: self.files,
            level: self.level,
            ceiling: self.ceiling,
            parent: process.number(),
            share: process.share().clone(),
            halvings: self.halvings,
        })?;
        Ok(child.number() as isize)
    }
}

pub(super) fn spawn(
    process: Arc<Process>,
    [request, ..]: [usize; 6],
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let parameters = match Parameters::read(&process, request) {
        Ok(parameters) => parameters,
        Err(error) => return CallStart::Done(Err(error)),
    };
    if let Some(program) = archive::find(&parameters.name) {
        return CallStart::Done(parameters.start(&process, program));
    }
    CallStart::Pending(async move {
        let (program, _charge) = storage::load(parameters.name.as_bytes(), process.share()).await?;
        parameters.start(&process, &program)
    })
}
