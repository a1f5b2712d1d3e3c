// Package wallclock steps the wall clock of a running process, for tests with wrong clocks. The process is
// neither restarted nor built in another way. It works on Linux on amd64.
package wallclock
