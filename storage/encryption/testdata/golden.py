import os,struct,json,base64,hashlib
from cryptography.hazmat.primitives.ciphers import Cipher,algorithms,modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.poly1305 import Poly1305
key=bytes(range(32)); place=b"/registry/core/secrets/default/golden"
doc=b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"golden","namespace":"default"},"data":{"a":"Yg=="}}'
out={}
iv=bytes(range(100,116)); pad=16-len(doc)%16
e=Cipher(algorithms.AES(key),modes.CBC(iv)).encryptor()
out['aescbc']=b"k8s:enc:aescbc:v1:key1:"+iv+e.update(doc+bytes([pad])*pad)+e.finalize()
n=bytes(range(50,62)); out['aesgcm']=b"k8s:enc:aesgcm:v1:key1:"+n+AESGCM(key).encrypt(n,doc,place)
# salsa20
def rotl(x,n): x&=0xffffffff; return ((x<<n)|(x>>(32-n)))&0xffffffff
def rounds(x):
    x=list(x)
    def qr(a,b,c,d):
        x[b]^=rotl(x[a]+x[d],7); x[c]^=rotl(x[b]+x[a],9); x[d]^=rotl(x[c]+x[b],13); x[a]^=rotl(x[d]+x[c],18)
    for _ in range(10):
        qr(0,4,8,12);qr(5,9,13,1);qr(10,14,2,6);qr(15,3,7,11)
        qr(0,1,2,3);qr(5,6,7,4);qr(10,11,8,9);qr(15,12,13,14)
    return x
S=struct.unpack('<4I',b'expand 32-byte k')
def state(k,i):
    k=struct.unpack('<8I',k); i=struct.unpack('<4I',i)
    return [S[0],*k[:4],S[1],*i,S[2],*k[4:],S[3]]
def hsalsa(k,i):
    x=rounds(state(k,i)); return struct.pack('<8I',x[0],x[5],x[10],x[15],x[6],x[7],x[8],x[9])
def block(k,n,c):
    s=state(k,n+struct.pack('<Q',c)); x=rounds(s); return struct.pack('<16I',*[(a+b)&0xffffffff for a,b in zip(s,x)])
bn=bytes(range(200,224)); sub=hsalsa(key,bn[:16])
ks=b''.join(block(sub,bn[16:],c) for c in range((len(doc)+32)//64+1))
ct=bytes(a^b for a,b in zip(doc,ks[32:])); tag=Poly1305.generate_tag(ks[:32],ct)
out['secretbox']=b"k8s:enc:secretbox:v1:key1:"+bn+tag+ct
def vi(n):
    r=b''
    while n>127: r+=bytes([n&127|128]); n>>=7
    return r+bytes([n])
def f(num,b): return bytes([num<<3|2])+vi(len(b))+b
info=bytes(range(32,64)); gn=bytes(range(80,92))
dk=HKDFExpand(hashes.SHA256(),32,info).derive(key)
tail=f(2,b"key-1")+f(3,b"encrypted seed")+f(4,f(1,b"version.example.com")+f(2,b"7"))
out['kms']=b"k8s:enc:kms:v2:plugin:"+f(1,info+gn+AESGCM(dk).encrypt(gn,doc,place))+tail+bytes([5<<3,1])
out['kms-old']=b"k8s:enc:kms:v2:plugin:"+f(1,gn+AESGCM(key).encrypt(gn,doc,place))+tail
json.dump({'key':base64.b64encode(key).decode(),'place':place.decode(),'document':doc.decode(),'stored':{k:base64.b64encode(v).decode() for k,v in out.items()}},open('/work/wt-encryption/storage/encryption/testdata/golden.json','w'),indent=1)
