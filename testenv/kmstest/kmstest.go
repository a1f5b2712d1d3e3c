// Package kmstest is a KMS v2 plugin for tests, on the module k8s.io/kms. Its state is a folder, so that a test can
// change its keys, make it unhealthy, and kill and restart it as a process of its own.
package kmstest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
)

// The files in the plugin's folder.
const (
	Socket  = "kms.sock"
	KeyID   = "keyid"   // the key that encrypts
	Lost    = "lost"    // the ID of a lost key
	Healthz = "healthz" // the status that Status returns instead of ok
)

// Serve serves the plugin of a folder until it is killed.
func Serve(dir string) error {
	server, listener, err := listen(dir)
	if err != nil {
		return err
	}
	return server.Serve(listener)
}

// Start serves the plugin of a folder in this process until stop is called.
func Start(dir string) (stop func(), err error) {
	server, listener, err := listen(dir)
	if err != nil {
		return nil, err
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	return func() {
		server.Stop()
		serving.Wait()
	}, nil
}

func listen(dir string) (*grpc.Server, net.Listener, error) {
	socket := filepath.Join(dir, Socket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	server := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, service.NewGRPCService(socket, time.Second, plugin{dir}))
	return server, listener, nil
}

// Set writes a file of a plugin's folder in one step; "" removes it.
func Set(dir, file, content string) error {
	path := filepath.Join(dir, file)
	if content == "" {
		return os.Remove(path)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

type plugin struct{ dir string }

var _ service.Service = plugin{}

// annotation is the annotation that every ciphertext has, and that Decrypt requires.
const annotation = "plugin.kmstest.coxswain.dev"

func (p plugin) file(name, otherwise string) string {
	content, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		return otherwise
	}
	return string(content)
}

func (p plugin) aead(keyID string) (cipher.AEAD, error) {
	if keyID == p.file(Lost, "") {
		return nil, fmt.Errorf("the key %s is lost", keyID)
	}
	key := sha256.Sum256([]byte("kmstest " + keyID)) // it needs no secrecy, and must outlive the process
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Status implements service.Service.
func (p plugin) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: p.file(Healthz, "ok"), KeyID: p.file(KeyID, "key-1")}, nil
}

// Encrypt implements service.Service.
func (p plugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	keyID := p.file(KeyID, "key-1")
	aead, err := p.aead(keyID)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return &service.EncryptResponse{Ciphertext: aead.Seal(nonce, nonce, data, nil), KeyID: keyID,
		Annotations: map[string][]byte{annotation: []byte(keyID)}}, nil
}

// Decrypt implements service.Service.
func (p plugin) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	if string(r.Annotations[annotation]) != r.KeyID {
		return nil, errors.New("the annotations are not those of the encryption")
	}
	aead, err := p.aead(r.KeyID)
	if err != nil {
		return nil, err
	}
	n := aead.NonceSize()
	if len(r.Ciphertext) < n {
		return nil, errors.New("the ciphertext is too short")
	}
	return aead.Open(nil, r.Ciphertext[:n], r.Ciphertext[n:], nil)
}
