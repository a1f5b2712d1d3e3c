package encryption

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"

	"golang.org/x/crypto/nacl/secretbox"

	"github.com/coxswain-dev/coxswain/storage"
)

// transformer encrypts documents for storage, without the prefix, and decrypts them. place is the document's key in
// etcd. If the cipher supports authenticated data, data stored at one key cannot be decrypted at another.
type transformer interface {
	// seal appends the encrypted document to dst.
	seal(dst, document, place []byte) ([]byte, error)
	// open returns the document, and reports whether it is stale: seal would encrypt it with another key. It does not
	// modify stored.
	open(ctx context.Context, stored, place []byte) (document []byte, stale bool, err error)
}

var errShort = errors.New("the stored data was shorter than the required size")

// gcm implements AES-GCM. It stores a random nonce of 12 bytes, then the sealed document.
type gcm struct{ aead cipher.AEAD }

func newGCM(key []byte) (gcm, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return gcm{}, err
	}
	aead, err := cipher.NewGCM(block)
	return gcm{aead}, err
}

func (g gcm) seal(dst, document, place []byte) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, g.aead.NonceSize())...)
	nonce := dst[start:]
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return g.aead.Seal(dst, nonce, document, place), nil
}

func (g gcm) open(_ context.Context, stored, place []byte) ([]byte, bool, error) {
	document, err := g.openData(stored, place)
	return document, false, err
}

func (g gcm) openData(stored, place []byte) ([]byte, error) {
	n := g.aead.NonceSize()
	if len(stored) < n {
		return nil, errShort
	}
	return g.aead.Open(nil, stored[:n], stored[n:], place)
}

// cbc implements AES-CBC. It stores a random IV, then the document with PKCS #7 padding. It has no authentication.
type cbc struct{ block cipher.Block }

func newCBC(key []byte) (cbc, error) {
	block, err := aes.NewCipher(key)
	return cbc{block}, err
}

func (c cbc) seal(dst, document, _ []byte) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, aes.BlockSize)...)
	iv := dst[start:]
	if _, err := rand.Read(iv); err != nil {
		return nil, err
	}
	dst = append(dst, document...)
	padding := aes.BlockSize - len(document)%aes.BlockSize
	for range padding {
		dst = append(dst, byte(padding))
	}
	body := dst[start+aes.BlockSize:]
	cipher.NewCBCEncrypter(c.block, dst[start:start+aes.BlockSize]).CryptBlocks(body, body)
	return dst, nil
}

var errPadding = errors.New("invalid padding on input")

func (c cbc) open(_ context.Context, stored, _ []byte) ([]byte, bool, error) {
	if len(stored) < 2*aes.BlockSize {
		return nil, false, errShort
	}
	iv, body := stored[:aes.BlockSize], stored[aes.BlockSize:]
	if len(body)%aes.BlockSize != 0 {
		return nil, false, errors.New("the stored data is not a multiple of the block size")
	}
	document := make([]byte, len(body))
	cipher.NewCBCDecrypter(c.block, iv).CryptBlocks(document, body)
	padding := int(document[len(document)-1])
	if padding == 0 || padding > aes.BlockSize {
		return nil, false, errPadding
	}
	rest := len(document) - padding
	for _, b := range document[rest:] {
		if int(b) != padding {
			return nil, false, errPadding
		}
	}
	return document[:rest], false, nil
}

// box implements NaCl's secretbox. It stores a random nonce of 24 bytes, then the sealed document.
type box struct{ key *[32]byte }

const boxNonce = 24

func newBox(key []byte) (box, error) {
	if len(key) != 32 {
		return box{}, errors.New("a key of secretbox has 32 bytes")
	}
	return box{(*[32]byte)(key)}, nil
}

func (b box) seal(dst, document, _ []byte) ([]byte, error) {
	var nonce [boxNonce]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, err
	}
	return secretbox.Seal(append(dst, nonce[:]...), document, &nonce, b.key), nil
}

func (b box) open(_ context.Context, stored, _ []byte) ([]byte, bool, error) {
	if len(stored) < boxNonce {
		return nil, false, errShort
	}
	document, ok := secretbox.Open(nil, stored[boxNonce:], (*[boxNonce]byte)(stored[:boxNonce]), b.key)
	if !ok {
		return nil, false, errors.New("the data is not what this key has sealed")
	}
	return document, false, nil
}

// plain stores documents as they are.
type plain struct{}

var errEncrypted = errors.New("the data is encrypted")

func (plain) seal(dst, document, _ []byte) ([]byte, error) { return append(dst, document...), nil }

func (plain) open(_ context.Context, stored, _ []byte) ([]byte, bool, error) {
	if isEncrypted(stored) {
		return nil, false, errEncrypted
	}
	return stored, false, nil
}

func isEncrypted(stored []byte) bool {
	return len(stored) >= len(storage.EncryptedPrefix) &&
		string(stored[:len(storage.EncryptedPrefix)]) == storage.EncryptedPrefix
}
