package storage_test

import (
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

func init() { storage.StartMemory = func() storage.Backend { return memory.New(memory.Options{}) } }
