package main

import (
	"os"
	"runtime"
	"strconv"
)

// The kernel kills the process first that has the highest score when the machine has no memory left. These are those of
// the kubelet and of what the kubelet starts of Kubernetes' own; pods have -997 at the least.
const (
	agentOOMScore     = -999
	apiServerOOMScore = -998
)

const oomScoreFile = "/proc/self/oom_score_adj"

// preferToKeep has the kernel kill others before this process, where that is permitted: it takes the capability
// SYS_RESOURCE. A process that has a lower score keeps it.
func preferToKeep(score int) {
	if runtime.GOOS == "linux" {
		writeOOMScore(oomScoreFile, score)
	}
}

func writeOOMScore(path string, score int) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if has, err := strconv.Atoi(string(trimNewline(text))); err == nil && has > score {
		_ = os.WriteFile(path, []byte(strconv.Itoa(score)), 0)
	}
}

func trimNewline(text []byte) []byte {
	if n := len(text); n > 0 && text[n-1] == '\n' {
		return text[:n-1]
	}
	return text
}
