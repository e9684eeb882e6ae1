package main

import (
	"errors"
	"io"
	"os"
	"syscall"
	"unsafe"
)

// raw is a regular file by bare system calls. An os.File is registered for polling, and at every call the runtime may
// hand its processor to another thread: together about half of the copy's CPU, and an init container may be given a
// tenth of a core. One goroutine copies, so that nothing else waits meanwhile.
type raw struct {
	fd   uintptr
	name string
}

func openForReading(name string) (raw, error) {
	return open("open", name, syscall.O_RDONLY)
}

// createAnew makes a file where there is none; what a killed run left there may be another user's, or a link.
func createAnew(name string) (raw, error) {
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL
	made, err := open("create", name, flags)
	if errors.Is(err, os.ErrExist) {
		if err := os.RemoveAll(name); err != nil {
			return made, err
		}
		return open("create", name, flags)
	}
	return made, err
}

func open(what, name string, flags uintptr) (raw, error) {
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return raw{}, failure(what, name, err)
	}
	fd, err := call(syscall.SYS_OPENAT, here, uintptr(unsafe.Pointer(text)), flags|syscall.O_CLOEXEC, 0o600)
	return raw{fd, name}, failure(what, name, err)
}

func (r raw) Read(buffer []byte) (int, error) {
	count, err := call(syscall.SYS_READ, r.fd, uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0)
	if err != nil {
		return 0, failure("read", r.name, err)
	}
	if count == 0 {
		return 0, io.EOF
	}
	return int(count), nil
}

func (r raw) Write(content []byte) (int, error) {
	written := 0
	for written < len(content) {
		left := content[written:]
		count, err := call(syscall.SYS_WRITE, r.fd, uintptr(unsafe.Pointer(&left[0])), uintptr(len(left)), 0)
		if err != nil {
			return written, failure("write", r.name, err)
		}
		written += int(count)
	}
	return written, nil
}

func (r raw) chmod(mode os.FileMode) error {
	_, err := call(syscall.SYS_FCHMOD, r.fd, uintptr(mode), 0, 0)
	return failure("chmod", r.name, err)
}

func (r raw) close() error {
	_, err := call(syscall.SYS_CLOSE, r.fd, 0, 0, 0)
	return failure("close", r.name, err)
}

func rename(from, to string) error {
	source, err := syscall.BytePtrFromString(from)
	if err != nil {
		return failure("rename", from, err)
	}
	target, err := syscall.BytePtrFromString(to)
	if err != nil {
		return failure("rename", to, err)
	}
	_, err = call(syscall.SYS_RENAMEAT, here, uintptr(unsafe.Pointer(source)), here, uintptr(unsafe.Pointer(target)))
	return failure("rename", to, err)
}

// here is the kernel's AT_FDCWD, -100.
const here = ^uintptr(99)

// call keeps what its arguments point to where it is until the kernel is done.
//
//go:uintptrescapes
func call(number, a, b, c, d uintptr) (uintptr, error) {
	for {
		result, _, err := syscall.RawSyscall6(number, a, b, c, d, 0, 0)
		if err == 0 {
			return result, nil
		}
		if err != syscall.EINTR {
			return 0, err
		}
	}
}

func failure(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: what, Path: name, Err: err}
}
