// Words from the system in, an exit status out; everything between is in Program.swift.
endProcess(await Program.run(rawArguments()))
