module drainagent/copy

go 1.19
